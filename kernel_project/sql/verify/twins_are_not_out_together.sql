-- No two operations of a project make the same write while the fate of one is not known (the repeat guard).
SELECT min(o.id::text) AS what FROM runs_operation o
WHERE o.effect = 'write' AND o.call_digest <> '' AND o.state IN ('dispatched', 'uncertain')
GROUP BY o.project_id, o.name, o.call_digest HAVING count(*) > 1
