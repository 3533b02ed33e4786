-- The periodic jobs, by how long each has been silent. Read by the readiness check and /metrics. A success that lies ahead
-- was before the database's clock went back: nobody knows how long ago, so it counts as that far away, until it is healed.
SELECT name, interval_seconds, abs(extract(epoch FROM clock_timestamp() - last_success_at)::float) AS age_seconds
FROM outbox_periodicjob ORDER BY last_success_at LIMIT %(jobs_max)s
