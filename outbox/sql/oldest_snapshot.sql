-- Who keeps old row versions alive: under a snapshot held open every scan of the hot tables grows slower.
SELECT pid, coalesce(application_name, '') AS application, coalesce(state, '') AS state,
    extract(epoch FROM clock_timestamp() - xact_start)::float AS age_seconds
FROM pg_stat_activity
WHERE backend_xmin IS NOT NULL AND datname = current_database() AND pid <> pg_backend_pid()
  AND xact_start < clock_timestamp() - make_interval(secs => %(older_seconds)s)
ORDER BY xact_start LIMIT 1
