-- A hold in force on something that was told in this month of the journal, if there is one.
SELECT h.id FROM runs_hold h
WHERE h.released_at IS NULL AND (
    h.run_id >= %(first)s::uuid AND h.run_id < %(beyond)s::uuid
    OR h.scope = 'project' AND EXISTS (
        SELECT FROM outbox_stream s
        WHERE s.project = h.project AND s.run_id >= %(first)s::uuid AND s.run_id < %(beyond)s::uuid
    )
) LIMIT 1
