-- Let an operation go: one more attempt with its event, if nobody moved it meanwhile and its run was not asked to stop.
-- The share lock on the run makes "no effect starts after a cancel is committed" true: the cancel waits for us.
-- The call must be the one that was looked at: the same arguments, and the yes that was checked still stands; its lock
-- comes after the run's and before the operation's, as everybody takes them.
-- `tokens`, `cost`: what a call of a model is charged for this attempt, on top of those before it.
-- `unclear`: the attempt before may have had its effect. `unsent`: it goes on only if that one has not said that it sends.
WITH live AS MATERIALIZED (
    SELECT id FROM runs_run
    WHERE id = %(run_id)s AND state = 'running' AND cancel_requested_at IS NULL
    FOR SHARE
), granted AS MATERIALIZED (
    SELECT a.id FROM live, approvals_approval a
    WHERE a.id = %(approval_id)s::uuid AND a.operation_id = %(operation_id)s AND a.state = 'granted'
    FOR SHARE OF a
), allowed AS MATERIALIZED (
    SELECT id FROM granted
    UNION ALL
    SELECT id FROM live WHERE %(approval_id)s::uuid IS NULL AND %(state)s::text <> 'awaiting_approval'
), begun AS (
    UPDATE runs_operation o
    SET state = 'dispatched', attempt = o.attempt + 1, dispatched_at = now.at, sending_at = NULL, settled_at = NULL,
        earlier_unclear = o.state <> 'reconciled' AND (o.earlier_unclear OR %(unclear)s::boolean),
        first_dispatched_at = coalesce(o.first_dispatched_at, now.at),
        deadline_at = now.at + make_interval(secs => %(timeout_seconds)s),
        result_digest = '', result_invalid = '', error_class = '', error_message = '',
        verdict = '', reconciled_by = '', reconciled_at = NULL, note = '', evidence_digest = '',
        tokens_charged = o.tokens_charged + coalesce(%(tokens)s::bigint, 0),
        tokens_reserved = coalesce(%(tokens)s::bigint, o.tokens_reserved),
        cost_charged = o.cost_charged + coalesce(%(cost)s::numeric, 0),
        cost_reserved = coalesce(%(cost)s::numeric, o.cost_reserved),
        probe_attempts = 0, next_probe_at = NULL, needs_attention = false
    FROM live, allowed, (SELECT clock_timestamp() AS at) now
    WHERE o.run_id = live.id AND o.id = %(operation_id)s AND o.state = %(state)s::text AND o.attempt = %(attempt)s
      AND o.arguments_digest = %(arguments_digest)s
      AND NOT (%(unsent)s::boolean AND o.sending_at IS NOT NULL)
    RETURNING o.dispatched_at, o.first_dispatched_at, o.deadline_at
)
SELECT begun.*, told.stored FROM begun, LATERAL outbox_append(%(events)s::jsonb) told
