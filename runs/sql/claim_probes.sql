-- Take uncertain operations whose probe is due, so that two ticks at once do not look for the same one.
UPDATE runs_operation SET next_probe_at = clock_timestamp() + make_interval(secs => %(claim_seconds)s)
WHERE id IN (
    SELECT id FROM runs_operation
    WHERE state = 'uncertain' AND next_probe_at <= clock_timestamp()
    ORDER BY next_probe_at LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
)
RETURNING id, attempt
