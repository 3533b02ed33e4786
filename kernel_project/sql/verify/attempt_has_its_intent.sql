-- Every attempt of an operation was told as started before it left (I1, S1).
SELECT o.id AS what FROM runs_operation o
WHERE o.run_id >= %(journal_from)s AND o.attempt <> (
    SELECT count(*) FROM outbox_event e
    WHERE e.run_id = o.run_id AND e.operation_id = o.id
      AND e.type IN ('tool.started', 'model.started')
)
