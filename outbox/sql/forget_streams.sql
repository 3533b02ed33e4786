-- Remove streams whose month of the journal is gone, unless one has gone on meanwhile.
DELETE FROM outbox_stream WHERE run_id = ANY(%(run_ids)s::uuid[]) AND published = head
