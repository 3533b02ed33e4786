-- The end of the last attempt was told as the state that the row has (S3).
SELECT o.id AS what FROM runs_operation o
WHERE o.run_id >= %(journal_from)s AND o.state IN ('succeeded', 'tool_error', 'failed', 'uncertain') AND NOT EXISTS (
    SELECT FROM outbox_event e
    WHERE e.run_id = o.run_id AND e.operation_id = o.id
      AND e.type IN ('tool.completed', 'tool.failed', 'model.completed', 'model.failed')
      AND (e.envelope::jsonb #>> '{data,attempt}')::bigint = o.attempt
      AND e.envelope::jsonb #>> '{data,status}' = o.state
)
