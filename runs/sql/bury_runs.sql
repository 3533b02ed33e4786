-- What is left of purged runs, and of those of their operations that a later call could repeat.
INSERT INTO runs_tombstone (project, run_id, operation_id, unique_key, digest, ended_at)
SELECT r.project_id, r.id, NULL::uuid, '', r.input_digest, r.ended_at FROM runs_run r WHERE r.id = ANY(%(run_ids)s::uuid[])
UNION ALL
SELECT o.project_id, o.run_id, o.id, o.unique_key, o.arguments_digest, r.ended_at
FROM runs_operation o JOIN runs_run r ON r.id = o.run_id
WHERE o.run_id = ANY(%(run_ids)s::uuid[]) AND o.unique_key <> '' AND o.attempt >= 1
ON CONFLICT DO NOTHING
