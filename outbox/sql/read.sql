-- The next events of the leased streams, each in its order, and one more than may be sent of each: its time says since
-- when the rest waits. Of a stream with large events fewer are read; the first one always.
SELECT e.run_id, e.sequence, e.event_id, e.envelope, e.recorded_at::text
FROM unnest(%(run_ids)s::uuid[], %(after)s::bigint[], %(upto)s::bigint[]) AS s (run_id, after, upto)
CROSS JOIN LATERAL (
    SELECT j.*, sum(octet_length(j.envelope)) OVER (ORDER BY j.sequence) - octet_length(j.envelope) AS bytes_before
    FROM (
        SELECT run_id, sequence, event_id, envelope, recorded_at FROM outbox_event
        WHERE run_id = s.run_id AND sequence > s.after AND sequence <= s.upto
        ORDER BY sequence LIMIT %(per_stream)s + 1
    ) j
) e
WHERE e.bytes_before < %(bytes_per_stream)s
