-- Take the publisher's place if it is free, expired or ours already; says whether somebody left it without a word. One
-- that is kept for longer than anybody may keep it was taken before the database's clock went back: it is over.
WITH before AS (
    SELECT name, worker_token FROM outbox_destination WHERE name = %(destination)s FOR UPDATE
)
UPDATE outbox_destination d
SET worker_token = %(token)s, worker_until = clock_timestamp() + make_interval(secs => %(place_seconds)s)
FROM before
WHERE d.name = before.name
  AND (before.worker_token IS NULL OR before.worker_token = %(token)s OR d.worker_until < clock_timestamp()
       OR d.worker_until > clock_timestamp() + make_interval(secs => %(place_seconds)s + %(margin_seconds)s))
RETURNING before.worker_token IS NOT NULL AND before.worker_token <> %(token)s AS replaced
