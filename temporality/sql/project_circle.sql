-- These events lie on a circle: they do not wait for each other, and are released together.
WITH circle AS (
    SELECT * FROM unnest(%(position)s::bigint[], %(circle)s::bigint[]) AS c (position, circle)
), edges AS (
    UPDATE temporality_edge e
       SET state = 'cyclic'
      FROM circle child, circle parent, temporality_event v
     WHERE e.generation = %(generation)s AND e.position = child.position AND parent.circle = child.circle
       AND v.position = parent.position AND v.source_id = e.source_id AND v.event_id = e.parent_event_id
       AND e.state = 'unapplied'
)
UPDATE temporality_pending p SET circle = circle.circle
  FROM circle WHERE p.generation = %(generation)s AND p.position = circle.position
