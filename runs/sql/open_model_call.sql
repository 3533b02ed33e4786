-- Take a run's next turn, unless it was asked to stop, and let the turn's model call go: its description, its row, dispatched
-- as it is written, its events, and what it is charged for as long as nobody knows better.
-- Messages up to the number `heard` are in this call's question: they are read now, once. The run's row is locked first of all; a cancel that comes now waits.
WITH taken AS (
    UPDATE runs_run
    SET state = 'running', started_at = coalesce(started_at, statement_timestamp()), turn = %(turn)s, waiting_for = '',
        build_id = %(build_id)s
    WHERE id = %(run_id)s AND state IN ('starting', 'running') AND cancel_requested_at IS NULL
    RETURNING id AS owner
), claimed AS (
    INSERT INTO runs_artifact (run_id, digest, kind, size, media_type, body)
    SELECT taken.owner, g.digest, 'arguments', g.size, g.media_type, decode(g.body, 'base64')
    FROM taken, jsonb_to_recordset(%(bodies)s::jsonb) AS g (digest text, size bigint, media_type text, body text)
    ON CONFLICT (run_id, digest, kind) DO NOTHING
), heard AS (
    UPDATE runs_runmessage m SET turn = %(turn)s
    FROM taken WHERE m.run_id = taken.owner AND m.turn IS NULL AND m.number <= %(heard)s
), called AS (
    INSERT INTO runs_operation ({columns}, tokens_charged, tokens_reserved, cost_charged, cost_reserved)
    SELECT {columns}, %(tokens)s::bigint, %(tokens)s::bigint, %(cost)s::numeric, %(cost)s::numeric
    FROM taken, jsonb_populate_record(NULL::runs_operation, (%(operation)s::jsonb -> 0) || jsonb_build_object(
        'dispatched_at', statement_timestamp(), 'first_dispatched_at', statement_timestamp(),
        'deadline_at', statement_timestamp() + make_interval(secs => %(timeout_seconds)s)))
    RETURNING dispatched_at, first_dispatched_at, deadline_at
)
SELECT called.*, told.stored FROM called, LATERAL outbox_append(%(events)s::jsonb) told
