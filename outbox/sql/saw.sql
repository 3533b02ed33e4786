-- What the event store says it has of a run. A stream that somebody is writing to is passed over and asked about again.
WITH free AS MATERIALIZED (
    SELECT run_id FROM outbox_stream WHERE run_id = %(run_id)s FOR UPDATE SKIP LOCKED
)
UPDATE outbox_stream s SET seen = %(seen)s, seen_at = clock_timestamp() FROM free WHERE s.run_id = free.run_id
