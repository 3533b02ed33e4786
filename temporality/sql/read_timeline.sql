-- A run's events in their sequence (those without one by time, first), and whether each is applied.
SELECT e.content, e.received_at,
       COALESCE(p.state, CASE WHEN e.position > live.position THEN 'unread' ELSE 'applied' END),
       COALESCE(e.sequence, 0), e.occurred_at, e.source_id, e.event_id
  FROM temporality_event e
  JOIN temporality_projector live ON live.state = 'live'
  LEFT JOIN temporality_pending p ON p.generation = live.generation AND p.position = e.position
 WHERE e.project = %(project)s AND e.run = %(run)s AND e.run <> ''
   AND (%(source_id)s::text IS NULL OR e.source_id = %(source_id)s)
   AND (COALESCE(e.sequence, 0), e.occurred_at, e.source_id, e.event_id)
     > (%(after_sequence)s, %(after_occurred_at)s::timestamptz, %(after_source_id)s::text, %(after_event_id)s::text)
 ORDER BY COALESCE(e.sequence, 0), e.occurred_at, e.source_id, e.event_id
 LIMIT %(limit)s
