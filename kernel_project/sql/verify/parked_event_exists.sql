-- A parked event is in the journal, so that it can be replayed.
SELECT p.event_id AS what FROM outbox_parkedevent p
WHERE p.run_id >= %(journal_from)s AND p.state = 'parked' AND NOT EXISTS (
    SELECT FROM outbox_event e WHERE e.run_id = p.run_id AND e.event_id = p.event_id
)
