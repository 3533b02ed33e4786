-- The same for one run: what was written, acknowledged, parked, and what the event store says it has.
SELECT s.project, s.head, s.published, s.seen, s.seen_at,
    s.head - s.published AS pending,
    (SELECT count(*) FROM (
        SELECT FROM outbox_parkedevent p WHERE p.run_id = s.run_id AND p.state IN ('parked', 'queued') LIMIT %(parked_max)s
    ) parked) AS parked,
    s.published - (SELECT count(*) FROM (
        SELECT FROM outbox_parkedevent p
        WHERE p.run_id = s.run_id AND p.state <> 'replayed' AND p.sequence <= s.published LIMIT %(parked_max)s
    ) refused) AS acknowledged,
    CASE WHEN s.ready_at IS NOT NULL
        THEN greatest(extract(epoch FROM clock_timestamp() - s.ready_at)::float, 0) END AS oldest_age_seconds,
    s.attempts, s.last_error
FROM outbox_stream s WHERE s.run_id = %(run_id)s
