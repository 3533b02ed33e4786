-- The event store has nothing of a run that was not written here: or this database is older than what it sent (I5).
SELECT s.run_id AS what FROM outbox_stream s WHERE s.seen > s.head
