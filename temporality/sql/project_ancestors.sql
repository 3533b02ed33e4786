-- From these events upwards along parents that are there and not applied: the edges among them, to look for circles.
-- Edges of known circles belong to it: a circle may grow.
WITH RECURSIVE up AS (
    SELECT p.position, p.source_id, p.event_id
      FROM unnest(%(source_id)s::text[], %(event_id)s::text[]) AS k (source_id, event_id)
     CROSS JOIN LATERAL (
           SELECT p.position, p.source_id, p.event_id FROM temporality_pending p
            WHERE p.generation = %(generation)s AND p.source_id = k.source_id AND p.event_id = k.event_id OFFSET 0) p
     UNION
    SELECT p.position, p.source_id, p.event_id
      FROM up
     CROSS JOIN LATERAL (
           SELECT e.source_id, e.parent_event_id, e.state FROM temporality_edge e
            WHERE e.generation = %(generation)s AND e.position = up.position OFFSET 0) e
     CROSS JOIN LATERAL (
           SELECT p.position, p.source_id, p.event_id FROM temporality_pending p
            WHERE p.generation = %(generation)s AND p.source_id = e.source_id AND p.event_id = e.parent_event_id
           OFFSET 0) p
     WHERE e.state IN ('unapplied', 'cyclic')
), bounded AS MATERIALIZED (SELECT * FROM up LIMIT %(limit)s)
SELECT child.position, parent.position
  FROM bounded child
 CROSS JOIN LATERAL (
       SELECT e.source_id, e.parent_event_id, e.state FROM temporality_edge e
        WHERE e.generation = %(generation)s AND e.position = child.position OFFSET 0) e
  JOIN bounded parent ON parent.source_id = e.source_id AND parent.event_id = e.parent_event_id
 WHERE e.state IN ('unapplied', 'cyclic')
