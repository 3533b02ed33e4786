-- Take the generation's turn to project; nothing if another projector has it, or if it is not wanted any more.
SELECT position, project, catalogue FROM temporality_projector WHERE generation = %(generation)s AND state <> 'retired'
   FOR UPDATE SKIP LOCKED
