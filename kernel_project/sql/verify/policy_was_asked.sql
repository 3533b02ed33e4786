-- What left did so with policy's answer on record, and that was no denial (S1).
SELECT o.id AS what FROM runs_operation o
WHERE o.attempt > 0 AND (o.policy_answer NOT IN ('allow', 'require') OR o.kind <> 'model' AND o.policy = '')
