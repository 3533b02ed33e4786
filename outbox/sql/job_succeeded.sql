-- A periodic job did its work. What others did before the database's clock went back counts as done now: their silence is
-- counted from here.
WITH ahead AS MATERIALIZED (
    SELECT name FROM outbox_periodicjob
    WHERE name <> %(name)s AND last_success_at > clock_timestamp() + make_interval(secs => %(margin_seconds)s)
    FOR UPDATE SKIP LOCKED
), healed AS (
    UPDATE outbox_periodicjob j SET last_success_at = clock_timestamp() FROM ahead WHERE j.name = ahead.name
)
INSERT INTO outbox_periodicjob (name, interval_seconds, last_success_at)
VALUES (%(name)s, %(interval_seconds)s, clock_timestamp())
ON CONFLICT (name) DO UPDATE SET interval_seconds = excluded.interval_seconds, last_success_at = excluded.last_success_at
