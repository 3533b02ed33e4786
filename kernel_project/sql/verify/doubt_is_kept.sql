-- No operation is said to have had no effect while an earlier attempt of it was unclear, and none forgot that it was (I2).
WITH attempts AS (
    SELECT e.run_id, e.operation_id, (e.envelope::jsonb #>> '{data,attempt}')::bigint AS attempt,
           e.envelope::jsonb #>> '{data,effect}' AS effect, e.type
    FROM outbox_event e
    WHERE e.operation_id IS NOT NULL AND e.type IN ('tool.failed', 'operation.reconciled')
), doubted AS (
    SELECT o.id, o.run_id, o.state, o.attempt, o.earlier_unclear
    FROM runs_operation o JOIN attempts a ON a.run_id = o.run_id AND a.operation_id = o.id
    WHERE o.run_id >= %(journal_from)s AND o.effect = 'write' AND a.attempt < o.attempt
      AND a.type = 'tool.failed' AND a.effect = 'uncertain'
      AND NOT EXISTS (  -- a probe or a person said later that this attempt, and with it all before it, had none
        SELECT FROM attempts said
        WHERE said.run_id = o.run_id AND said.operation_id = o.id AND said.type = 'operation.reconciled'
          AND said.effect = 'none' AND said.attempt >= a.attempt AND said.attempt < o.attempt
      )
)
SELECT id AS what FROM doubted o
WHERE state = 'failed' OR (state IN ('dispatched', 'uncertain') AND NOT earlier_unclear)
   OR (state = 'tool_error' AND EXISTS (
        SELECT FROM attempts last
        WHERE last.run_id = o.run_id AND last.operation_id = o.id AND last.attempt = o.attempt AND last.effect = 'none'
      ))
UNION
SELECT id FROM runs_operation WHERE earlier_unclear AND state = 'failed'
