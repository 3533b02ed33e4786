-- The streams that wait longest, for a person to look at.
SELECT run_id, project, head, published, seen, head - published AS pending,
    greatest(extract(epoch FROM clock_timestamp() - ready_at)::float, 0) AS oldest_age_seconds, attempts, last_error
FROM outbox_stream WHERE ready_at IS NOT NULL ORDER BY ready_at LIMIT %(streams)s
