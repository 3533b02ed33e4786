-- A periodic job did its work.
INSERT INTO outbox_periodicjob (name, interval_seconds, last_success_at)
VALUES (%(name)s, %(interval_seconds)s, clock_timestamp())
ON CONFLICT (name) DO UPDATE SET interval_seconds = excluded.interval_seconds, last_success_at = excluded.last_success_at
