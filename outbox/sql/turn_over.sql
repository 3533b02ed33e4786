-- These streams were asked about and not answered for: others come first now. Waits for no writer.
WITH free AS MATERIALIZED (
    SELECT run_id FROM outbox_stream
    WHERE run_id = ANY(%(run_ids)s::uuid[])
      AND (seen_at IS NULL OR seen_at < clock_timestamp() - make_interval(secs => %(again_seconds)s))
    ORDER BY run_id FOR UPDATE SKIP LOCKED
)
UPDATE outbox_stream s SET seen_at = clock_timestamp() FROM free WHERE s.run_id = free.run_id
