-- No write without a key has, or may have, an effect whose sending was not marked before (S1, S5).
SELECT o.id AS what FROM runs_operation o
WHERE o.state IN ('succeeded', 'uncertain') AND o.sending_at IS NULL
  AND o.effect = 'write' AND o.kind <> 'model' AND o.idempotent_for_seconds IS NULL
