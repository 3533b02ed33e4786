-- What is to be sealed next, in the order in which it was written, with project and actor as the event tells them.
SELECT a.id, a.action, a.event_id, a.run_id, a.content_hash, a.at, a.detail, e.envelope
FROM runs_auditentry a LEFT JOIN outbox_event e ON e.run_id = a.run_id AND e.event_id = a.event_id
WHERE a.sequence IS NULL ORDER BY a.id LIMIT %(entries)s
