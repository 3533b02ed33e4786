-- Streams of which more was acknowledged than the event store was last seen to have: half of a look is for those never
-- asked about, the newest first, half for those asked about longest ago. Neither keeps the other from its turn.
(SELECT run_id, project FROM outbox_stream
 WHERE published > coalesce(seen, 0) AND seen_at IS NULL
 ORDER BY run_id DESC LIMIT %(streams)s / 2)
UNION ALL
(SELECT run_id, project FROM outbox_stream
 WHERE published > coalesce(seen, 0) AND seen_at < clock_timestamp() - make_interval(secs => %(again_seconds)s)
 ORDER BY seen_at NULLS FIRST, run_id DESC LIMIT %(streams)s / 2)
