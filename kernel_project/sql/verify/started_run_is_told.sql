-- A run that came to its end was told as started before, once (F5).
SELECT r.id AS what FROM runs_run r
WHERE r.id >= %(journal_from)s AND r.state = 'completed' AND 1 <> (
    SELECT count(*) FROM outbox_event e WHERE e.run_id = r.id AND e.type = 'run.started'
)
