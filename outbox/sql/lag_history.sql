-- The samples of the lag that are not older than the window. Read by the home page.
SELECT extract(epoch FROM clock_timestamp() - at)::float8 AS age_seconds, pending, oldest_seconds
FROM outbox_lagsample
WHERE at > clock_timestamp() - make_interval(secs => %(window_seconds)s::float8) AND at <= clock_timestamp()
ORDER BY at LIMIT %(slots)s::int
