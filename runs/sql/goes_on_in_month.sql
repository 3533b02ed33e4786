-- A run of this month of the journal that may tell more, if there is one: it lives, is being resumed, or waits for what
-- somebody finds out or decides. Each part is read by an index of its own, for this is asked under the lock of the drop.
SELECT coalesce(
    (SELECT id FROM runs_run
     WHERE state IN ('starting', 'running', 'cancelling') AND id >= %(first)s::uuid AND id < %(beyond)s::uuid LIMIT 1),
    (SELECT id FROM runs_run
     WHERE resuming_since IS NOT NULL AND id >= %(first)s::uuid AND id < %(beyond)s::uuid LIMIT 1),
    (SELECT run_id FROM runs_operation
     WHERE state = 'uncertain' AND run_id >= %(first)s::uuid AND run_id < %(beyond)s::uuid LIMIT 1),
    (SELECT run_id FROM approvals_approval
     WHERE state = 'waiting' AND run_id >= %(first)s::uuid AND run_id < %(beyond)s::uuid LIMIT 1)
)
