-- How far the event store is behind one project, as its API callers may see it. Bounded: of everybody's streams that
-- are behind, the oldest are looked at, then those of the project are added up.
WITH behind AS MATERIALIZED (
    SELECT run_id, project, head, published, ready_at FROM outbox_stream
    WHERE ready_at IS NOT NULL ORDER BY ready_at LIMIT %(streams_max)s
), own AS (
    SELECT * FROM behind WHERE project = %(project)s
), latest AS (  -- those that the event store was asked about, and how many of their events it refused
    SELECT l.published, l.seen, r.refused, r.refused_of_seen FROM (
        SELECT run_id, project, published, seen FROM outbox_stream ORDER BY run_id DESC LIMIT %(recent_max)s
    ) l CROSS JOIN LATERAL (
        SELECT count(*) AS refused, count(*) FILTER (WHERE sequence <= l.seen) AS refused_of_seen FROM (
            SELECT sequence FROM outbox_parkedevent
            WHERE run_id = l.run_id AND state <> 'replayed' AND sequence <= l.published LIMIT %(parked_max)s
        ) p
    ) r
    WHERE l.project = %(project)s AND l.seen IS NOT NULL
), owed AS (
    SELECT least(s.head - s.published, %(events_max)s) - (SELECT count(*) FROM (
        SELECT FROM outbox_event e
        WHERE e.run_id = s.run_id AND e.sequence > s.published AND e.sequence <= s.head
        ORDER BY e.sequence LIMIT %(events_max)s
    ) kept) AS missing
    FROM (SELECT * FROM own ORDER BY ready_at LIMIT %(audited_max)s) s
), parked AS (
    SELECT s.project FROM (
        SELECT run_id FROM outbox_parkedevent WHERE state IN ('parked', 'queued') ORDER BY parked_at LIMIT %(parked_max)s
    ) p JOIN outbox_stream s ON s.run_id = p.run_id
)
SELECT
    (SELECT coalesce(sum(head - published), 0)::bigint FROM own) AS pending,
    (SELECT count(*) FROM own) AS runs_behind,
    (SELECT max(greatest(extract(epoch FROM clock_timestamp() - ready_at)::float, 0)) FROM own) AS oldest_age_seconds,
    (SELECT count(*) FROM parked WHERE project = %(project)s) AS parked,
    (SELECT coalesce(sum(missing), 0)::bigint FROM owed) AS unaccounted,
    (SELECT count(*) FROM latest) AS runs_asked,
    (SELECT coalesce(sum(published - refused), 0)::bigint FROM latest) AS acknowledged,
    (SELECT coalesce(sum(seen - refused_of_seen), 0)::bigint FROM latest) AS seen,
    (SELECT count(*) FROM latest WHERE seen < published) AS runs_with_gap,
    (SELECT count(*) FROM behind) >= %(streams_max)s OR (SELECT count(*) FROM parked) >= %(parked_max)s AS is_minimum,
    (SELECT min(greatest(extract(epoch FROM clock_timestamp() - beat_at)::float, 0)) FROM outbox_publisherheartbeat
        WHERE beat_at <= clock_timestamp() + make_interval(secs => %(margin_seconds)s)) AS publisher_age_seconds,
    coalesce((SELECT failures FROM outbox_destination WHERE name = %(destination)s), 0) AS destination_failures,
    (SELECT extract(epoch FROM open_until - clock_timestamp())::float FROM outbox_destination
        WHERE name = %(destination)s AND open_until > clock_timestamp()
          AND open_until <= clock_timestamp() + make_interval(secs => %(circuit_max_seconds)s + %(margin_seconds)s)
    ) AS circuit_open_seconds
