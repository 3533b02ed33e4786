-- Take the generation's turn to project; nothing if another projector has it.
SELECT position, project, catalogue FROM temporality_projector WHERE generation = %(generation)s
   FOR UPDATE SKIP LOCKED
