-- End every other connection to this database, and wait up to 5 s for each: an armed fault point does it.
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
