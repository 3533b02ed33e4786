-- Write the outcome of an attempt, if it is still the current one: compare-and-set on (dispatched, attempt).
-- An uncertain operation is probed soon where it can be, and needs a person where it cannot.
UPDATE runs_operation
SET state = %(state)s, settled_at = clock_timestamp(),
    result_digest = %(result_digest)s, result_invalid = %(result_invalid)s,
    error_class = %(error_class)s, error_message = %(error_message)s,
    usage = coalesce(%(usage)s::jsonb, usage),
    next_probe_at = CASE WHEN %(state)s = 'uncertain' AND probes THEN clock_timestamp() + make_interval(secs => %(probe_after_seconds)s) END,
    needs_attention = %(state)s = 'uncertain' AND NOT probes
WHERE id = %(operation_id)s AND state = 'dispatched' AND attempt = %(attempt)s
RETURNING run_id, jsonb_build_object(
    'project_id', project_id, 'turn', turn, 'position', position, 'kind', kind, 'name', name, 'actor', actor,
    'effect', effect, 'arguments_digest', arguments_digest, 'policy', policy, 'policy_answer', policy_answer,
    'attempt', attempt, 'state', state, 'result_digest', result_digest, 'error_class', error_class
)
