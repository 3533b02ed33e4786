-- How far the event store is behind one project, as its API callers may see it. Bounded: of everybody's streams that
-- are behind, the oldest are looked at, then those of the project are added up.
WITH behind AS MATERIALIZED (
    SELECT project, head, published, ready_at FROM outbox_stream
    WHERE ready_at IS NOT NULL ORDER BY ready_at LIMIT %(streams_max)s
), own AS (
    SELECT * FROM behind WHERE project = %(project)s
), parked AS (
    SELECT s.project FROM (
        SELECT run_id FROM outbox_parkedevent WHERE state IN ('parked', 'queued') ORDER BY parked_at LIMIT %(parked_max)s
    ) p JOIN outbox_stream s ON s.run_id = p.run_id
)
SELECT
    (SELECT coalesce(sum(head - published), 0)::bigint FROM own) AS pending,
    (SELECT count(*) FROM own) AS runs_behind,
    (SELECT extract(epoch FROM clock_timestamp() - min(ready_at))::float FROM own) AS oldest_age_seconds,
    (SELECT count(*) FROM parked WHERE project = %(project)s) AS parked,
    (SELECT count(*) FROM behind) >= %(streams_max)s OR (SELECT count(*) FROM parked) >= %(parked_max)s AS is_minimum,
    (SELECT extract(epoch FROM clock_timestamp() - max(beat_at))::float FROM outbox_publisherheartbeat)
        AS publisher_age_seconds,
    (SELECT coalesce(max(failures), 0) FROM outbox_destination) AS destination_failures,
    (SELECT extract(epoch FROM max(open_until) - clock_timestamp())::float FROM outbox_destination
        WHERE open_until > clock_timestamp()) AS circuit_open_seconds
