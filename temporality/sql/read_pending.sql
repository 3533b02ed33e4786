-- Events that are stored and not applied, oldest first, with the edges that are not satisfied.
SELECT p.source_id, p.event_id, p.type, p.run, p.kind, p.key, p.state, p.reason, p.received_at,
       ARRAY(SELECT e.parent_event_id || ': ' || e.state FROM temporality_edge e
              WHERE e.generation = p.generation AND e.position = p.position ORDER BY e.parent_event_id LIMIT 100),
       p.position
  FROM temporality_pending p
 WHERE p.generation = (SELECT generation FROM temporality_projector WHERE state = 'live')
   AND p.project = %(project)s AND p.state = ANY(%(states)s)
   AND (%(after_position)s::bigint IS NULL OR p.position > %(after_position)s)
 ORDER BY p.position
 LIMIT %(limit)s
