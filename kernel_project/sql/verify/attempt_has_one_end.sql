-- Every attempt but one that is under way was told with exactly one end (S3).
SELECT o.id AS what FROM runs_operation o
WHERE o.attempt - (o.state = 'dispatched')::int <> (
    SELECT count(*) FROM outbox_event e
    WHERE e.run_id = o.run_id AND e.operation_id = o.id
      AND e.type IN ('tool.completed', 'tool.failed', 'model.completed', 'model.failed')
)
