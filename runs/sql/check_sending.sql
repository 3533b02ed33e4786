-- Whether the first byte of an attempt that needs no mark may leave now: its run was not asked to stop, and the other side
-- will know its key until the attempt has ended. No row: the attempt is not the current one any more.
-- A key matters only once an earlier attempt may have had its effect.
SELECT r.state = 'running' AND r.cancel_requested_at IS NULL,
    NOT o.earlier_unclear OR clock_timestamp() + make_interval(secs => %(timeout_seconds)s)
        < o.first_dispatched_at + make_interval(secs => o.idempotent_for_seconds)
FROM runs_operation o JOIN runs_run r ON r.id = o.run_id
WHERE o.id = %(operation_id)s AND o.state = 'dispatched' AND o.attempt = %(attempt)s
