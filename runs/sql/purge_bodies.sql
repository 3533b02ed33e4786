-- Take the bytes away of artifacts whose retention is over; the claim stays, with key and hash.
UPDATE runs_artifact a SET body = NULL, purged_at = clock_timestamp()
WHERE a.run_id = ANY(%(run_ids)s::uuid[]) AND a.kind = %(kind)s AND a.purged_at IS NULL AND NOT EXISTS (
    SELECT FROM runs_hold h WHERE h.project = %(project)s AND h.released_at IS NULL AND h.digest = a.digest
)
