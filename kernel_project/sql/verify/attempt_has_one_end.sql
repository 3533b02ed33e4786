-- Every attempt but one that is under way was told with exactly one end (S3).
SELECT o.id AS what FROM runs_operation o
CROSS JOIN LATERAL generate_series(1, o.attempt - (o.state = 'dispatched')::int) AS made (attempt)
WHERE o.run_id >= %(journal_from)s AND 1 <> (
    SELECT count(*) FROM outbox_event e
    WHERE e.run_id = o.run_id AND e.operation_id = o.id
      AND e.type IN ('tool.completed', 'tool.failed', 'model.completed', 'model.failed')
      AND (e.envelope::jsonb #>> '{data,attempt}')::bigint = made.attempt
)
UNION
SELECT o.id FROM runs_operation o
WHERE o.run_id >= %(journal_from)s AND o.state = 'dispatched' AND EXISTS (
    SELECT FROM outbox_event e
    WHERE e.run_id = o.run_id AND e.operation_id = o.id
      AND e.type IN ('tool.completed', 'tool.failed', 'model.completed', 'model.failed')
      AND (e.envelope::jsonb #>> '{data,attempt}')::bigint = o.attempt
)
