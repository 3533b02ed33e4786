-- What policy or a person refused never left.
SELECT o.id AS what FROM runs_operation o
WHERE o.state IN ('denied', 'rejected', 'expired') AND o.attempt > 0
