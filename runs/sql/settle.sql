-- Write the outcome of an attempt, with its bodies and its event, if it is still the current one: compare-and-set on
-- (dispatched, attempt). An uncertain operation is probed soon where it can be, and needs a person where it cannot.
-- `denies`: it says that there was no effect, which one attempt cannot say for an earlier, unclear one. `unsent`: it says so
-- because the attempt has not said that it sends. `tokens`, `cost`: what it really used; without them its reservation stands.
WITH settled AS (
    UPDATE runs_operation
    SET state = %(state)s::text, settled_at = clock_timestamp(),
        result_digest = %(result_digest)s, result_invalid = %(result_invalid)s,
        error_class = %(error_class)s, error_message = %(error_message)s,
        usage = coalesce(%(usage)s::jsonb, usage),
        tokens_charged = tokens_charged + coalesce(%(tokens)s::bigint - tokens_reserved, 0),
        cost_charged = cost_charged + coalesce(%(cost)s::numeric - cost_reserved, 0),
        next_probe_at = CASE WHEN %(state)s::text = 'uncertain' AND probes
            THEN clock_timestamp() + make_interval(secs => %(probe_after_seconds)s) END,
        needs_attention = %(state)s::text = 'uncertain' AND NOT probes
    WHERE id = %(operation_id)s AND state = 'dispatched' AND attempt = %(attempt)s
      AND NOT (%(denies)s::boolean AND earlier_unclear)
      AND NOT (%(unsent)s::boolean AND sending_at IS NOT NULL)
    RETURNING run_id
), claimed AS (
    INSERT INTO runs_artifact (run_id, digest, kind, size, media_type, body)
    SELECT settled.run_id, g.digest, 'result', g.size, g.media_type, decode(g.body, 'base64')
    FROM settled, jsonb_to_recordset(%(bodies)s::jsonb) AS g (digest text, size bigint, media_type text, body text)
    ON CONFLICT (run_id, digest, kind) DO NOTHING
)
SELECT told.stored FROM settled, LATERAL outbox_append(%(events)s::jsonb) told
