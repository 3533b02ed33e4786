-- Streams whose month of the journal is gone and that have nothing left to send, a batch in the order of their runs.
SELECT run_id FROM outbox_stream
WHERE run_id >= %(first)s AND run_id < %(beyond)s AND published = head ORDER BY run_id LIMIT %(streams)s
