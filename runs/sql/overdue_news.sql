-- Live runs whose news nobody has looked at in time. The next telling is put off, each time for longer, and the run
-- shows since when it does not listen.
WITH due AS (
    SELECT id, run_id FROM runs_news WHERE tell_at <= clock_timestamp()
    ORDER BY tell_at LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
), told AS (
    UPDATE runs_news n
    SET tells = n.tells + 1,
        tell_at = clock_timestamp() + make_interval(secs => 2 * 2 ^ least(n.tells + 1, %(doublings_max)s))
    FROM due WHERE n.id = due.id
    RETURNING n.run_id, n.at
), silent AS (
    SELECT run_id, min(at) AS since FROM told GROUP BY run_id
)
UPDATE runs_run r
SET wake_since = least(r.wake_since, silent.since)
FROM silent
WHERE r.id = silent.run_id AND r.state IN ('starting', 'running', 'cancelling')
RETURNING r.id, r.cancel_requested_at IS NOT NULL
