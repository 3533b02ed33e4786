-- From these events upwards along parents that are there and not applied: the edges among them, to look for circles.
-- Edges of known circles belong to it: a circle may grow.
WITH RECURSIVE up AS (
    SELECT p.position, p.source_id, p.event_id
      FROM temporality_pending p
      JOIN unnest(%(source_id)s::text[], %(event_id)s::text[]) AS k (source_id, event_id)
           ON p.source_id = k.source_id AND p.event_id = k.event_id
     WHERE p.generation = %(generation)s
     UNION
    SELECT p.position, p.source_id, p.event_id
      FROM up
      JOIN temporality_edge e ON e.generation = %(generation)s AND e.position = up.position AND e.state IN ('unapplied', 'cyclic')
      JOIN temporality_pending p ON p.generation = %(generation)s AND p.source_id = e.source_id
       AND p.event_id = e.parent_event_id
), bounded AS (SELECT * FROM up LIMIT %(limit)s)
SELECT child.position, parent.position
  FROM bounded child
  JOIN temporality_edge e ON e.generation = %(generation)s AND e.position = child.position AND e.state IN ('unapplied', 'cyclic')
  JOIN bounded parent ON parent.source_id = e.source_id AND parent.event_id = e.parent_event_id
