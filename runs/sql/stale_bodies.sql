-- Bodies in rows that are not under the newest key, a batch in the order of their ids, locked until they are.
SELECT id, digest, body FROM runs_artifact
WHERE id > %(after)s::bigint AND body IS NOT NULL
  AND substring(body FROM 1 FOR length(%(header)s::bytea)) <> %(header)s::bytea
ORDER BY id LIMIT %(bodies)s FOR NO KEY UPDATE
