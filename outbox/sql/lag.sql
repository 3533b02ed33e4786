-- How far the event store is behind us, in one row and one snapshot. Bounded: it reads the streams that are behind, the
-- parked events and the handful of publishers, never the journal as a whole. Read by the home page, the API, /metrics.
-- Ages are by the database clock alone. What lies further ahead than it can have been set (by more than a margin) was set
-- before that clock went back: such a heartbeat says nothing, such a wait is over, and no age is negative.
WITH behind AS MATERIALIZED (
    SELECT run_id, head, published, ready_at, leased_until, next_attempt_at FROM outbox_stream
    WHERE ready_at IS NOT NULL ORDER BY ready_at LIMIT %(streams_max)s
), owed AS (  -- the oldest of them are counted against the journal itself
    SELECT s.run_id, least(s.head - s.published, %(events_max)s) AS promised,
        (SELECT count(*) FROM (
            SELECT FROM outbox_event e
            WHERE e.run_id = s.run_id AND e.sequence > s.published AND e.sequence <= s.head
            ORDER BY e.sequence LIMIT %(events_max)s
        ) kept) AS kept,
        (SELECT count(*) FROM (
            SELECT FROM outbox_event e WHERE e.run_id = s.run_id AND e.sequence > s.head LIMIT %(events_max)s
        ) beyond) AS beyond
    FROM (SELECT * FROM behind ORDER BY ready_at LIMIT %(audited_max)s) s
)
SELECT
    (SELECT coalesce(sum(head - published), 0)::bigint FROM behind) AS pending,
    (SELECT count(*) FROM behind) AS streams_behind,
    (SELECT max(greatest(extract(epoch FROM clock_timestamp() - ready_at)::float, 0)) FROM behind) AS oldest_age_seconds,
    (SELECT count(*) FROM behind
        WHERE (ready_at < clock_timestamp() - make_interval(secs => %(unowned_seconds)s)
               OR ready_at > clock_timestamp() + make_interval(secs => %(margin_seconds)s))
          AND (leased_until IS NULL OR leased_until < clock_timestamp()
               OR leased_until > clock_timestamp() + make_interval(secs => %(lease_seconds)s + %(margin_seconds)s))
          AND (next_attempt_at IS NULL OR next_attempt_at < clock_timestamp()
               OR next_attempt_at > clock_timestamp() + make_interval(secs => %(held_max_seconds)s + %(margin_seconds)s))
    ) AS streams_unowned,
    (SELECT count(*) FROM (
        SELECT FROM outbox_parkedevent WHERE state IN ('parked', 'queued') LIMIT %(parked_max)s
    ) p) AS parked,
    (SELECT count(*) FROM (
        SELECT FROM outbox_parkedevent WHERE state = 'given_up' LIMIT %(parked_max)s
    ) g) AS given_up,
    (SELECT coalesce(sum(abs(promised - kept) + beyond), 0)::bigint FROM owed) AS unaccounted,
    (SELECT min(greatest(extract(epoch FROM clock_timestamp() - beat_at)::float, 0)) FROM outbox_publisherheartbeat
        WHERE beat_at <= clock_timestamp() + make_interval(secs => %(margin_seconds)s)) AS publisher_age_seconds,
    (SELECT extract(epoch FROM open_until - clock_timestamp())::float FROM outbox_destination
        WHERE name = %(destination)s AND open_until > clock_timestamp()
          AND open_until <= clock_timestamp() + make_interval(secs => %(circuit_max_seconds)s + %(margin_seconds)s)
    ) AS circuit_open_seconds,
    coalesce((SELECT failures FROM outbox_destination WHERE name = %(destination)s), 0) AS destination_failures,
    coalesce((SELECT last_error FROM outbox_destination WHERE name = %(destination)s AND failures > 0), '')
        AS destination_error
