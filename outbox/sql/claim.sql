-- Lease ready streams to one publisher, unless the destination's circuit is open. Streams that another one holds, or that
-- are being written to, are passed over. The hint keeps the scan away from index entries of streams that were emptied
-- long ago (dead under an old snapshot). A time that lies further ahead than it can have been set (by more than a margin)
-- was set before the database's clock went back: it is over.
WITH destination AS MATERIALIZED (
    SELECT coalesce(max(failures), 0) AS failures, coalesce(bool_or(
        open_until > clock_timestamp()
        AND open_until <= clock_timestamp() + make_interval(secs => %(circuit_max_seconds)s + %(margin_seconds)s)
    ), false) AS is_open
    FROM outbox_destination WHERE name = %(destination)s
), ready AS MATERIALIZED (
    SELECT run_id FROM outbox_stream
    WHERE ready_at >= %(hint)s AND NOT (SELECT is_open FROM destination)
      AND (leased_until IS NULL OR leased_until < clock_timestamp()
           OR leased_until > clock_timestamp() + make_interval(secs => %(lease_seconds)s + %(margin_seconds)s))
      AND (next_attempt_at IS NULL OR next_attempt_at <= clock_timestamp()
           OR next_attempt_at > clock_timestamp() + make_interval(secs => %(held_max_seconds)s + %(margin_seconds)s))
    ORDER BY ready_at
    LIMIT %(streams)s
    FOR UPDATE SKIP LOCKED
)
UPDATE outbox_stream s
SET lease_token = %(token)s, leased_until = clock_timestamp() + make_interval(secs => %(lease_seconds)s),
    attempts = s.attempts + 1
FROM ready, destination WHERE s.run_id = ready.run_id
RETURNING s.run_id, s.published, s.head, s.ready_at, clock_timestamp(), destination.failures
