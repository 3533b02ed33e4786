-- Streams of which more was acknowledged than the event store was last seen to have; those never asked about come first.
SELECT run_id, project FROM outbox_stream
WHERE published > coalesce(seen, 0)
  AND (seen_at IS NULL OR seen_at < clock_timestamp() - make_interval(secs => %(again_seconds)s))
ORDER BY seen_at NULLS FIRST, run_id DESC LIMIT %(streams)s
