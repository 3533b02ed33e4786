-- These edges lie on a circle: nobody waits for them any more.
UPDATE temporality_edge e
   SET state = 'cyclic'
  FROM unnest(%(child)s::bigint[], %(parent)s::bigint[]) AS c (child, parent)
  JOIN temporality_event p ON p.position = c.parent
 WHERE e.generation = %(generation)s AND e.position = c.child AND e.parent_event_id = p.event_id
