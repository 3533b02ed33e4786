-- Let a run refer to bodies that are staged. A claim that is there already stays as it is.
INSERT INTO runs_artifact (run_id, digest, kind, size, media_type, body)
SELECT %(run_id)s, g.digest, %(kind)s, g.size, g.media_type, decode(g.body, 'base64')
FROM jsonb_to_recordset(%(bodies)s::jsonb) AS g (digest text, size bigint, media_type text, body text)
ON CONFLICT (run_id, digest, kind) DO NOTHING
