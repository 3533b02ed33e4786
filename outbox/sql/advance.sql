-- Move the cursors of leased streams and give the leases back, in key order. A lease that was lost changes nothing: the
-- caller counts the rows. A stream with more to send is ready since its next event was written, which the caller read.
-- (No look into the journal from here: PostgreSQL 18.4 crashes when an UPDATE that does so meets a row changed meanwhile.)
WITH mine AS MATERIALIZED (
    SELECT s.run_id FROM outbox_stream s
    JOIN unnest(%(run_ids)s::uuid[]) AS a (run_id) ON a.run_id = s.run_id
    WHERE s.lease_token = %(token)s AND s.leased_until > clock_timestamp()
    ORDER BY s.run_id FOR UPDATE OF s
)
UPDATE outbox_stream s
SET published = a.published,
    ready_at = CASE WHEN s.head > a.published THEN coalesce(a.waits_since, clock_timestamp()) END,
    attempts = CASE WHEN a.published > s.published OR a.unused THEN 0 ELSE s.attempts END,
    next_attempt_at = CASE WHEN a.delay_seconds > 0
        THEN clock_timestamp() + make_interval(secs => a.delay_seconds) END,
    last_error = a.error, lease_token = NULL, leased_until = NULL
FROM mine, unnest(%(run_ids)s::uuid[], %(published)s::bigint[], %(waits_since)s::timestamptz[], %(delays)s::float8[],
                  %(unused)s::bool[], %(errors)s::text[])
     AS a (run_id, published, waits_since, delay_seconds, unused, error)
WHERE s.run_id = mine.run_id AND a.run_id = mine.run_id
RETURNING s.run_id
