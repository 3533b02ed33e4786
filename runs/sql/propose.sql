-- Write the calls of one turn with the bodies of their arguments.
WITH claimed AS (
    INSERT INTO runs_artifact (run_id, digest, kind, size, media_type, body)
    SELECT %(run_id)s, g.digest, 'arguments', g.size, g.media_type, decode(g.body, 'base64')
    FROM jsonb_to_recordset(%(bodies)s::jsonb) AS g (digest text, size bigint, media_type text, body text)
    ON CONFLICT (run_id, digest, kind) DO NOTHING
)
INSERT INTO runs_operation ({columns})
SELECT {columns} FROM jsonb_populate_recordset(NULL::runs_operation, %(operations)s::jsonb)
