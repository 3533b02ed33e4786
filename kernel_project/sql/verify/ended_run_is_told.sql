-- A run that has ended was told so.
SELECT r.id AS what FROM runs_run r
WHERE r.id >= %(journal_from)s AND r.state IN ('completed', 'failed', 'cancelled') AND NOT EXISTS (
    SELECT FROM outbox_event e WHERE e.run_id = r.id AND e.type = 'run.' || r.state
)
