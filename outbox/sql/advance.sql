-- Move the cursors of leased streams and give the leases back, in key order. A lease that was lost changes nothing, and a
-- stream that somebody is writing to is passed over: the caller looks which of the two it was. A stream whose event was
-- held waits, each time longer; what was sent in vain to a store that takes nothing from anybody uses up no attempt.
-- (No look into the journal from here: PostgreSQL 18.4 crashes when an UPDATE that does so meets a row changed meanwhile.)
WITH mine AS MATERIALIZED (
    SELECT s.run_id FROM outbox_stream s
    JOIN unnest(%(run_ids)s::uuid[], %(tokens)s::uuid[]) AS a (run_id, token)
        ON a.run_id = s.run_id AND a.token = s.lease_token
    WHERE s.leased_until > clock_timestamp()
    ORDER BY s.run_id FOR UPDATE OF s SKIP LOCKED
)
UPDATE outbox_stream s
SET published = a.published,
    ready_at = CASE WHEN s.head > a.published THEN a.waits_since END,
    attempts = CASE WHEN a.held = '' THEN CASE WHEN a.published > s.published THEN 0 ELSE greatest(s.attempts - 1, 0) END
                    WHEN a.published > s.published THEN 1
                    ELSE s.attempts END,
    next_attempt_at = CASE WHEN a.held <> '' THEN clock_timestamp() + make_interval(secs => (0.5 + random() / 2) * least(
        %(held_max_seconds)s::float8,
        %(held_first_seconds)s::float8 * CASE WHEN a.published > s.published THEN 1 ELSE 2 ^ least(s.attempts - 1, 20) END
    )) END,
    last_error = CASE WHEN a.held <> '' THEN a.held WHEN a.published > s.published THEN '' ELSE s.last_error END,
    lease_token = NULL, leased_until = NULL
FROM mine, unnest(
    %(run_ids)s::uuid[], %(tokens)s::uuid[], %(published)s::bigint[], %(waits_since)s::timestamptz[], %(held)s::text[]
) AS a (run_id, token, published, waits_since, held)
WHERE s.run_id = mine.run_id AND a.run_id = mine.run_id AND a.token = s.lease_token
RETURNING s.run_id, a.token
