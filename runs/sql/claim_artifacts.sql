-- Let a run refer to bodies that are staged. A claim that is there already stays as it is.
INSERT INTO runs_artifact (run_id, digest, kind, size, media_type, body)
SELECT %(run_id)s, g.digest, %(kind)s, g.size, g.media_type, g.body
FROM unnest(%(digests)s::text[], %(sizes)s::bigint[], %(media_types)s::text[], %(bodies)s::bytea[])
     AS g (digest, size, media_type, body)
ON CONFLICT (run_id, digest, kind) DO NOTHING
