-- Where these parents stand: their position, project, and whether they are applied in this generation.
SELECT k.source_id, k.event_id, e.position, e.project,
       NOT EXISTS (SELECT 1 FROM temporality_pending p WHERE p.generation = %(generation)s AND p.position = e.position)
  FROM unnest(%(source_id)s::text[], %(event_id)s::text[]) AS k (source_id, event_id)
 CROSS JOIN LATERAL (
       SELECT position, project FROM temporality_event v
        WHERE v.source_id = k.source_id AND v.event_id = k.event_id OFFSET 0) e
