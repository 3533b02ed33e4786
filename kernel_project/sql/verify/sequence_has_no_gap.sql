-- The events of a run are numbered 1 to the head of its stream, without a gap (O1).
SELECT s.run_id AS what FROM outbox_stream s
LEFT JOIN (
    SELECT run_id, count(*) AS events, min(sequence) AS first, max(sequence) AS last FROM outbox_event GROUP BY run_id
) j ON j.run_id = s.run_id
WHERE s.head <> coalesce(j.last, 0) OR coalesce(j.events, 0) <> coalesce(j.last - j.first + 1, 0)
