-- Every event belongs to a stream that publishes it: none is unaccounted for (I4).
SELECT DISTINCT e.run_id AS what FROM outbox_event e
WHERE NOT EXISTS (SELECT FROM outbox_stream s WHERE s.run_id = e.run_id AND s.head >= e.sequence)
