-- What of the latest runs was written, acknowledged and seen over there, side by side. Read by the home page. What was
-- refused for good, and not taken by a replay, is neither.
WITH latest AS (
    SELECT l.*, r.refused, r.refused_of_seen FROM (
        SELECT run_id, head, published, seen, created_at FROM outbox_stream ORDER BY run_id DESC LIMIT %(streams_max)s
    ) l CROSS JOIN LATERAL (
        SELECT count(*) AS refused, count(*) FILTER (WHERE sequence <= l.seen) AS refused_of_seen FROM (
            SELECT sequence FROM outbox_parkedevent
            WHERE run_id = l.run_id AND state <> 'replayed' AND sequence <= l.published LIMIT %(parked_max)s
        ) p
    ) r
)
SELECT count(*) AS streams,
    coalesce(sum(head), 0)::bigint AS written,
    coalesce(sum(published - refused), 0)::bigint AS acknowledged,
    count(seen) AS streams_asked,
    coalesce(sum(seen - refused_of_seen), 0)::bigint AS seen,
    coalesce(sum(published - refused) FILTER (WHERE seen IS NOT NULL), 0)::bigint AS acknowledged_of_asked,
    count(*) FILTER (WHERE seen < published) AS streams_with_gap,
    count(*) FILTER (WHERE seen > head AND created_at > coalesce(
        (SELECT max(raised_at) FROM outbox_sourceepoch), '-infinity')) AS streams_rewound
FROM latest
