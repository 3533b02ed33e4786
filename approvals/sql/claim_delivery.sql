-- Take the message that is due for longest, of the channels that have a share left, for as long as the lease lasts.
-- The attempt counts before it is made. Materialized: a plan that asks for the due one again, once for each message it may
-- belong to, would find another each time and lease them all.
WITH due AS MATERIALIZED (
    SELECT id FROM approvals_delivery
    WHERE next_attempt_at <= clock_timestamp() AND (approval_id IS NOT NULL) = %(of_requests)s
        AND channel_id <> ALL (%(spent)s::uuid[])
    ORDER BY next_attempt_at LIMIT 1
    FOR UPDATE SKIP LOCKED
)
UPDATE approvals_delivery d
SET attempts = attempts + 1, lease_token = %(token)s,
    next_attempt_at = clock_timestamp() + make_interval(secs => %(lease_seconds)s)
FROM due
WHERE d.id = due.id
RETURNING d.id
