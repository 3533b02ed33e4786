-- Events in ingest order after a position, and the head of the same snapshot: everything up to it is visible, because
-- positions are given out under the head's lock. One row without an event if there is none.
SELECT head.position, e.position, e.content, e.received_at
  FROM temporality_head head
  LEFT JOIN LATERAL (
       SELECT position, content, received_at
         FROM temporality_event
        WHERE position > %(after)s AND position <= head.position
          AND (%(project)s::text IS NULL OR project = %(project)s)
          AND (%(projects)s::text[] IS NULL OR project = ANY(%(projects)s))
          AND (%(source_id)s::text IS NULL OR source_id = %(source_id)s)
          AND (%(event_id)s::text IS NULL OR event_id = %(event_id)s)
          AND (%(run)s::text IS NULL OR run = %(run)s)
          AND (%(task)s::text IS NULL OR task = %(task)s)
          AND (%(actor)s::text IS NULL OR actor_id = %(actor)s)
          AND (%(type)s::text IS NULL OR type = %(type)s)
          AND (%(since)s::timestamptz IS NULL OR occurred_at >= %(since)s)
          AND (%(until)s::timestamptz IS NULL OR occurred_at <= %(until)s)
          AND (%(known_at)s::timestamptz IS NULL OR received_at <= %(known_at)s)
        ORDER BY position
        LIMIT %(limit)s) e ON true
 ORDER BY e.position
