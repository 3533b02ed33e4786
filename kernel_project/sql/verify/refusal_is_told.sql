-- A call that was refused, or taken back, was told as blocked.
SELECT o.id AS what FROM runs_operation o
WHERE o.run_id >= %(journal_from)s AND o.state IN ('blocked', 'denied', 'rejected', 'expired', 'withdrawn') AND NOT EXISTS (
    SELECT FROM outbox_event e
    WHERE e.run_id = o.run_id AND e.operation_id = o.id AND e.type IN ('tool.blocked', 'model.blocked')
)
