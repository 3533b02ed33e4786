-- Remove streams whose month of the journal is gone, a batch at a time.
DELETE FROM outbox_stream WHERE run_id IN (
    SELECT run_id FROM outbox_stream WHERE run_id >= %(first)s AND run_id < %(beyond)s AND published = head ORDER BY run_id LIMIT %(streams)s
)
