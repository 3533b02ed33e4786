-- Parked events that a person wants sent again, unless the destination's circuit is open.
SELECT e.run_id, e.sequence, e.event_id, e.envelope, e.recorded_at::text
FROM (
    SELECT run_id, sequence FROM outbox_parkedevent WHERE state = 'queued' ORDER BY parked_at LIMIT %(events)s
) q JOIN outbox_event e ON e.run_id = q.run_id AND e.sequence = q.sequence
WHERE NOT EXISTS (
    SELECT FROM outbox_destination WHERE name = %(destination)s AND open_until > clock_timestamp()
)
