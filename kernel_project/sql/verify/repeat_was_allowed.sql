-- A write that the other side cannot recognise was repeated only after an attempt that provably had no effect (I2, S5).
-- Commands in the sandbox are left out where they were declared replay-safe, or nobody kept what they were declared.
SELECT o.id AS what FROM runs_operation o CROSS JOIN LATERAL generate_series(1, o.attempt - 1) AS earlier (attempt)
WHERE o.run_id >= %(journal_from)s AND o.attempt > 1
  AND o.effect = 'write' AND o.idempotent_for_seconds IS NULL AND o.kind <> 'model'
  AND (o.kind <> 'sandbox' OR o.declared ->> 'replay_safe' = 'false')
  AND NOT EXISTS (
    SELECT FROM outbox_event e
    WHERE e.run_id = o.run_id AND e.operation_id = o.id AND e.type IN ('tool.failed', 'operation.reconciled')
      AND (e.envelope::jsonb #>> '{data,attempt}')::bigint = earlier.attempt
      AND e.envelope::jsonb #>> '{data,effect}' = 'none'
)
