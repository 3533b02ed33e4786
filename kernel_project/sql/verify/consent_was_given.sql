-- What policy sent to a person left only with that person's yes (F11).
SELECT o.id AS what FROM runs_operation o
WHERE o.policy_answer = 'require' AND o.attempt > 0 AND NOT EXISTS (
    SELECT FROM approvals_approval a WHERE a.operation_id = o.id AND a.state IN ('granted', 'voided')
)
