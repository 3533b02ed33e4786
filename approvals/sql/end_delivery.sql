-- Write what became of an attempt, if its lease is still ours; a next attempt is put off by so many seconds.
UPDATE approvals_delivery
SET lease_token = NULL, last_error = %(error)s, dropped = %(dropped)s,
    sent_at = CASE WHEN %(sent)s THEN clock_timestamp() END,
    next_attempt_at = CASE WHEN NOT %(sent)s AND %(dropped)s = ''
        THEN clock_timestamp() + make_interval(secs => %(again_seconds)s) END
WHERE id = %(id)s AND lease_token = %(token)s
