-- The publisher lives; its counts grow, whatever task or thread of the process is at work.
INSERT INTO outbox_publisherheartbeat AS h (publisher, beat_at, published_total, fenced_total)
VALUES (%(publisher)s, clock_timestamp(), %(published)s, %(fenced)s)
ON CONFLICT (publisher) DO UPDATE
    SET beat_at = excluded.beat_at, published_total = h.published_total + excluded.published_total,
        fenced_total = h.fenced_total + excluded.fenced_total
RETURNING h.beat_at
