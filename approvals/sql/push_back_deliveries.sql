-- Put off the due messages of a channel that hangs; those that another sender holds at this moment are left out.
WITH due AS MATERIALIZED (
    SELECT id FROM approvals_delivery
    WHERE channel_id = %(channel)s AND next_attempt_at <= clock_timestamp()
    ORDER BY next_attempt_at LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
)
UPDATE approvals_delivery d
SET next_attempt_at = clock_timestamp() + make_interval(secs => %(seconds)s)
FROM due
WHERE d.id = due.id
