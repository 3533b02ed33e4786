-- One sample of the lag. Its slot follows from the database clock, so that the table has a fixed number of rows.
INSERT INTO outbox_lagsample (slot, at, pending, oldest_seconds)
VALUES (
    (extract(epoch FROM clock_timestamp())::bigint / %(sample_seconds)s::bigint) %% %(slots)s::bigint,
    clock_timestamp(), %(pending)s::bigint, %(oldest_seconds)s::float8
)
ON CONFLICT (slot) DO UPDATE
SET at = excluded.at, pending = excluded.pending, oldest_seconds = excluded.oldest_seconds
