-- Causal edges that nobody waits for any more, newest first, with the reason.
SELECT e.source_id, v.event_id, e.parent_event_id, e.state
  FROM temporality_edge e
  JOIN temporality_event v ON v.position = e.position
 WHERE e.generation = (SELECT generation FROM temporality_projector WHERE state = 'live')
   AND e.project = %(project)s AND e.state NOT IN ('missing', 'unapplied')
 ORDER BY e.id DESC
 LIMIT %(limit)s
