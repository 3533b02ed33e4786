-- A replay that was neither taken nor refused lets the others go first, each time longer.
UPDATE outbox_parkedevent
SET next_attempt_at = clock_timestamp() + make_interval(secs => least(
        %(held_max_seconds)s::float8, %(held_first_seconds)s::float8 * 2 ^ least(held_count, 20))),
    held_count = held_count + 1, last_error = coalesce(nullif(%(error)s, ''), last_error)
WHERE event_id = %(event_id)s AND state = 'queued'
