-- What was told as started is the call of the row: tool and hash of the arguments (S1).
SELECT o.id AS what FROM runs_operation o
JOIN outbox_event e ON e.run_id = o.run_id AND e.operation_id = o.id AND e.type = 'tool.started'
WHERE e.envelope::jsonb #>> '{data,arguments_hash}' IS DISTINCT FROM o.arguments_digest
   OR e.envelope::jsonb #>> '{data,tool}' IS DISTINCT FROM o.name
