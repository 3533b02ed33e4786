-- Note that the first byte of an attempt may leave now, if it is still the current one and its run was not asked to stop.
-- The share lock on the run makes a cancel wait for us, so no first byte leaves after a cancel is committed.
WITH live AS MATERIALIZED (
    SELECT r.id FROM runs_run r
    WHERE r.id = (SELECT run_id FROM runs_operation WHERE id = %(operation_id)s)
      AND r.state = 'running' AND r.cancel_requested_at IS NULL
    FOR SHARE OF r
)
UPDATE runs_operation o SET sending_at = clock_timestamp()
FROM live
WHERE o.run_id = live.id AND o.id = %(operation_id)s AND o.state = 'dispatched' AND o.attempt = %(attempt)s
RETURNING o.id
