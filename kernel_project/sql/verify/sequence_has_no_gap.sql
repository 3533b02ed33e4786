-- The events of a run are numbered 1 to the head of its stream, without a gap (O1).
SELECT s.run_id AS what FROM outbox_stream s
LEFT JOIN (
    SELECT run_id, count(*) AS events, min(sequence) AS first, max(sequence) AS last FROM outbox_event GROUP BY run_id
) j ON j.run_id = s.run_id
WHERE s.run_id >= %(journal_from)s AND s.head > 0 AND (j.events, j.first, j.last) IS DISTINCT FROM (s.head, 1, s.head)
