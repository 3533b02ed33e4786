-- Take uncertain operations whose probe is due, so that two ticks at once do not look for the same one. Materialized: a plan
-- that asks again would take more than it was told to.
WITH due AS MATERIALIZED (
    SELECT id FROM runs_operation
    WHERE state = 'uncertain' AND next_probe_at <= clock_timestamp()
    ORDER BY next_probe_at LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE runs_operation o SET next_probe_at = clock_timestamp() + make_interval(secs => %(claim_seconds)s)
FROM due WHERE o.id = due.id
RETURNING o.id, o.attempt
