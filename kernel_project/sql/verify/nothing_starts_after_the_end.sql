-- After a run was completed or cancelled, no call of it began (F12).
SELECT DISTINCT e.run_id AS what FROM outbox_event e
JOIN outbox_event s ON s.run_id = e.run_id AND s.sequence > e.sequence AND s.type IN ('tool.started', 'model.started')
WHERE e.type IN ('run.completed', 'run.cancelled')
