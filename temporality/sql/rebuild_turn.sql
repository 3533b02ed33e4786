-- One rebuild at a time.
SELECT pg_try_advisory_lock(%(key)s)
