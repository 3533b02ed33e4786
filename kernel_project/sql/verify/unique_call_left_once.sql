-- Of the calls that a tool's `unique_by` holds for one and the same, only the first left without naming its twin.
SELECT min(o.id::text) AS what FROM runs_operation o
WHERE o.unique_key <> '' AND o.attempt > 0 AND o.twin_id IS NULL
GROUP BY o.project_id, o.unique_key HAVING count(*) > 1
