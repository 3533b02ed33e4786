-- A rebuild of one project does not read the others, so a parent of another project does not land in it by itself.
UPDATE temporality_edge e
   SET state = 'foreign_project'
  FROM temporality_event parent
 WHERE e.generation = %(generation)s AND e.state = 'missing' AND parent.source_id = e.source_id
   AND parent.event_id = e.parent_event_id AND parent.project <> e.project AND parent.position <= %(upto)s
RETURNING e.position
