-- A stream with unpublished events is ready to be claimed, and one without is not.
SELECT s.run_id AS what FROM outbox_stream s
WHERE (s.published < s.head) IS DISTINCT FROM (s.ready_at IS NOT NULL) OR s.published > s.head
