-- What is held back from items of one kind, of what had happened and had arrived by two times.
SELECT CASE p.kind WHEN 'knowledge' THEN '' ELSE p.source_id END, p.key, p.event_id || ': ' || p.reason
  FROM temporality_pending p
  JOIN temporality_event e ON e.position = p.position
 WHERE p.generation = (SELECT generation FROM temporality_projector WHERE state = 'live')
   AND p.project = %(project)s AND p.kind = %(kind)s
   AND (%(key)s::text IS NULL OR p.key = %(key)s)
   AND (%(as_of)s::timestamptz IS NULL OR e.occurred_at <= %(as_of)s)
   AND (%(known_at)s::timestamptz IS NULL OR e.received_at <= %(known_at)s)
 ORDER BY p.position
 LIMIT %(limit)s
