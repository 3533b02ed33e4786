-- Number new events and write them, one statement: the stream's row lock makes sequences gapless and ordered by commit.
-- Events whose id is already there are answered with their old envelope and take no number.
WITH given AS (
    SELECT * FROM unnest(
        %(run_ids)s::uuid[], %(projects)s::text[], %(event_ids)s::uuid[], %(types)s::text[],
        %(occurred)s::timestamptz[], %(operation_ids)s::uuid[], %(caused_by)s::text[],
        %(before)s::text[], %(after)s::text[]
    ) WITH ORDINALITY
    AS g (run_id, project, event_id, type, occurred_at, operation_id, caused_by, before, after, position)
), known AS (
    SELECT j.event_id, j.sequence, j.envelope
    FROM given g JOIN outbox_event j ON j.run_id = g.run_id AND j.event_id = g.event_id
), fresh AS (
    SELECT g.*, row_number() OVER (PARTITION BY g.run_id ORDER BY g.position) AS place
    FROM given g WHERE NOT EXISTS (SELECT 1 FROM known k WHERE k.event_id = g.event_id)
), stream AS (
    INSERT INTO outbox_stream AS s (run_id, project, head, published, ready_at, attempts, last_error)
    SELECT run_id, min(project), count(*), 0, clock_timestamp(), 0, '' FROM fresh GROUP BY run_id ORDER BY run_id
    ON CONFLICT (run_id) DO UPDATE
        SET head = s.head + excluded.head, ready_at = coalesce(s.ready_at, excluded.ready_at)
    RETURNING run_id, head
), written AS (
    INSERT INTO outbox_event
        (event_id, run_id, sequence, type, occurred_at, recorded_at, operation_id, caused_by, envelope)
    SELECT f.event_id, f.run_id, n.sequence, f.type, f.occurred_at, clock_timestamp(), f.operation_id,
           f.caused_by::uuid[], f.before || n.sequence || f.after
    FROM fresh f
    JOIN (SELECT run_id, count(*) AS total FROM fresh GROUP BY run_id) c ON c.run_id = f.run_id
    JOIN stream s ON s.run_id = f.run_id
    CROSS JOIN LATERAL (SELECT s.head - c.total + f.place AS sequence) n
    RETURNING event_id, sequence
)
SELECT event_id, sequence, NULL AS envelope FROM written
UNION ALL
SELECT event_id, sequence, envelope FROM known
