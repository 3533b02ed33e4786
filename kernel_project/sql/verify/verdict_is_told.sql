-- A reconciled operation was told with its verdict, its author and, as its cause, the start that it is about (F8).
SELECT o.id AS what FROM runs_operation o
WHERE o.run_id >= %(journal_from)s AND o.state = 'reconciled' AND NOT EXISTS (
    SELECT FROM outbox_event e
    WHERE e.run_id = o.run_id AND e.operation_id = o.id AND e.type = 'operation.reconciled' AND EXISTS (
        SELECT FROM outbox_event s
        WHERE s.run_id = e.run_id AND s.event_id = ANY (e.caused_by) AND s.type IN ('tool.started', 'model.started')
    )
)
