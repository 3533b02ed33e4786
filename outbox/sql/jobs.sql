-- The periodic jobs, by how long each has been silent. Read by the readiness check and /metrics.
SELECT name, interval_seconds, extract(epoch FROM clock_timestamp() - last_success_at)::float AS age_seconds
FROM outbox_periodicjob ORDER BY last_success_at LIMIT %(jobs_max)s
