-- Causal edges that nobody waits for any more, newest first, with the reason.
SELECT e.source_id, v.event_id, e.parent_event_id, e.state, e.position, e.parent_event_id
  FROM temporality_edge e
  JOIN temporality_event v ON v.position = e.position
 WHERE e.generation = (SELECT generation FROM temporality_projector WHERE state = 'live')
   AND e.project = %(project)s AND e.state NOT IN ('missing', 'unapplied')
   AND (%(after_position)s::bigint IS NULL
        OR (e.position, e.parent_event_id) < (%(after_position)s, %(after_parent)s::text))
 ORDER BY e.position DESC, e.parent_event_id DESC
 LIMIT %(limit)s
