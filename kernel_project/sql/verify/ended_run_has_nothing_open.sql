-- A run that has ended has no call that could still leave, or that is under way.
SELECT r.id AS what FROM runs_run r
WHERE r.state IN ('completed', 'failed', 'cancelled') AND EXISTS (
    SELECT FROM runs_operation o
    WHERE o.run_id = r.id AND o.state IN ('proposed', 'awaiting_approval', 'dispatched')
)
