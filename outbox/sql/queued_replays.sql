-- Parked events that a person wants sent again and whose turn it is, unless the destination's circuit is open. A time
-- further ahead than it can have been set was set before the database's clock went back: it is over.
SELECT e.run_id, e.sequence, e.event_id, e.envelope, e.recorded_at::text
FROM (
    SELECT run_id, sequence, next_attempt_at FROM outbox_parkedevent
    WHERE state = 'queued' AND (
        next_attempt_at <= clock_timestamp()
        OR next_attempt_at > clock_timestamp() + make_interval(secs => %(held_max_seconds)s + %(margin_seconds)s)
    )
    ORDER BY next_attempt_at LIMIT %(events)s
) q JOIN outbox_event e ON e.run_id = q.run_id AND e.sequence = q.sequence
WHERE NOT EXISTS (
    SELECT FROM outbox_destination
    WHERE name = %(destination)s AND open_until > clock_timestamp()
      AND open_until <= clock_timestamp() + make_interval(secs => %(circuit_max_seconds)s + %(margin_seconds)s)
)
ORDER BY q.next_attempt_at
