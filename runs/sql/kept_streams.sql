-- Of these streams, those that must stay when their events have gone: their run is still there, or they are held.
SELECT s.run_id FROM outbox_stream s
WHERE s.run_id = ANY(%(run_ids)s::uuid[]) AND (
    EXISTS (SELECT FROM runs_run r WHERE r.id = s.run_id)
    OR EXISTS (
        SELECT FROM runs_hold h
        WHERE h.released_at IS NULL
          AND (h.id = s.run_id OR h.run_id = s.run_id OR h.scope = 'project' AND h.project = s.project)
    )
)
