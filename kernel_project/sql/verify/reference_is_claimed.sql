-- Every artifact that an operation refers to is claimed by its run.
SELECT o.id AS what FROM runs_operation o
CROSS JOIN LATERAL unnest(ARRAY[o.arguments_digest, o.result_digest, o.evidence_digest]) AS named (digest)
WHERE named.digest <> '' AND NOT EXISTS (
    SELECT FROM runs_artifact a WHERE a.run_id = o.run_id AND a.digest = named.digest
)
