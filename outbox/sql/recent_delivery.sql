-- What of the latest runs was written, acknowledged and seen over there, side by side. Read by the home page.
WITH latest AS (
    SELECT run_id, head, published, seen, created_at FROM outbox_stream ORDER BY run_id DESC LIMIT %(streams_max)s
)
SELECT count(*) AS streams,
    coalesce(sum(head), 0)::bigint AS written,
    coalesce(sum(published), 0)::bigint - (SELECT count(*) FROM (
        SELECT FROM outbox_parkedevent
        WHERE state <> 'replayed' AND run_id >= (SELECT run_id FROM latest ORDER BY run_id LIMIT 1) LIMIT %(parked_max)s
    ) refused) AS acknowledged,
    count(seen) AS streams_asked,
    coalesce(sum(seen), 0)::bigint AS seen,
    coalesce(sum(published) FILTER (WHERE seen IS NOT NULL), 0)::bigint AS acknowledged_of_asked,
    count(*) FILTER (WHERE seen < published) AS streams_with_gap,
    count(*) FILTER (WHERE seen > head AND created_at > coalesce(
        (SELECT max(raised_at) FROM outbox_sourceepoch), '-infinity')) AS streams_rewound
FROM latest
