-- Where these parents stand: their position, project, and whether they are applied in this generation.
SELECT e.source_id, e.event_id, e.position, e.project, p.position IS NULL
  FROM (SELECT DISTINCT * FROM unnest(%(source_id)s::text[], %(event_id)s::text[])) AS k (source_id, event_id)
  JOIN temporality_event e ON e.source_id = k.source_id AND e.event_id = k.event_id
  LEFT JOIN temporality_pending p ON p.generation = %(generation)s AND p.position = e.position
