-- A hold in force on something that was told in this month of the journal, if there is one. A hold on an artifact keeps
-- the runs that refer to it, and so what they told.
SELECT h.id FROM runs_hold h
WHERE h.released_at IS NULL AND (
    h.run_id >= %(first)s::uuid AND h.run_id < %(beyond)s::uuid
    OR h.scope = 'project' AND EXISTS (
        SELECT FROM outbox_stream s
        WHERE s.project = h.project AND s.run_id >= %(first)s::uuid AND s.run_id < %(beyond)s::uuid
    )
    OR h.scope = 'artifact' AND EXISTS (
        SELECT FROM runs_artifact a JOIN runs_run r ON r.id = a.run_id
        WHERE a.digest = h.digest AND r.project_id = h.project
          AND a.run_id >= %(first)s::uuid AND a.run_id < %(beyond)s::uuid
    )
) LIMIT 1
