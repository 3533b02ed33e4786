-- One page of events by time. Parameters that are NULL do not filter; the cursor is the place of the last event seen.
SELECT content, occurred_at, received_at, source_id, event_id
  FROM temporality_event
 WHERE (%(project)s::text IS NULL OR project = %(project)s)
   AND (%(projects)s::text[] IS NULL OR project = ANY(%(projects)s))
   AND (%(source_id)s::text IS NULL OR source_id = %(source_id)s)
   AND (%(event_id)s::text IS NULL OR event_id = %(event_id)s)
   AND (%(run)s::text IS NULL OR (run = %(run)s AND run <> ''))
   AND (%(task)s::text IS NULL OR task = %(task)s)
   AND (%(actor)s::text IS NULL OR actor_id = %(actor)s)
   AND (%(type)s::text IS NULL OR type = %(type)s)
   AND (%(since)s::timestamptz IS NULL OR occurred_at >= %(since)s)
   AND (%(until)s::timestamptz IS NULL OR occurred_at <= %(until)s)
   AND (%(known_at)s::timestamptz IS NULL OR received_at <= %(known_at)s)
   AND (%(cursor_occurred_at)s::timestamptz IS NULL
        OR (occurred_at, received_at, source_id, event_id)
         > (%(cursor_occurred_at)s, %(cursor_received_at)s::timestamptz, %(cursor_source_id)s::text,
            %(cursor_event_id)s::text))
 ORDER BY occurred_at, received_at, source_id, event_id
 LIMIT %(limit)s
