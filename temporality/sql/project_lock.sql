-- Take the generation's turn to project; nothing if another projector has it, or if it is not wanted any more. The head
-- is committed, and so is every event up to it.
SELECT p.position, p.project, p.catalogue, (SELECT head.position FROM temporality_head head)
  FROM temporality_projector p
 WHERE p.generation = %(generation)s AND p.state <> 'retired'
   FOR UPDATE OF p SKIP LOCKED
