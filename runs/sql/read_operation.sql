-- All that a dispatch must know of one operation, in one look: the call, its run, its tool as registered now.
-- Few columns, for each costs the driver more than its share of one JSON text.
SELECT o.run_id, o.first_dispatched_at, o.deadline_at, a.body, jsonb_build_object(
    'operation', jsonb_build_object(
        'compensates_id', o.compensates_id,
        'project_id', o.project_id, 'turn', o.turn, 'position', o.position, 'kind', o.kind, 'name', o.name,
        'definition_digest', o.definition_digest, 'arguments_digest', o.arguments_digest,
        'call_digest', o.call_digest, 'twin_id', o.twin_id, 'actor', o.actor, 'effect', o.effect,
        'idempotent_for_seconds', o.idempotent_for_seconds, 'probes', o.probes, 'declared', o.declared,
        'policy', o.policy,
        'policy_id', o.policy_id, 'policy_version', o.policy_version, 'policy_answer', o.policy_answer,
        'state', o.state, 'attempt', o.attempt, 'verdict', o.verdict,
        'reconciled_by', o.reconciled_by
    ),
    'run', jsonb_build_object('project_id', r.project_id, 'workspace', r.workspace, 'started_by', r.started_by),
    'version', jsonb_build_object(
        'id', v.id, 'version', v.version, 'digest', v.digest,
        'definition', jsonb_build_object('model_timeout_seconds', v.definition -> 'model_timeout_seconds')
    ),
    'agent', jsonb_build_object('id', g.id, 'name', g.name),
    'tool', to_jsonb(t),
    'server', to_jsonb(s) - 'created_at'
)
FROM runs_operation o
JOIN runs_run r ON r.id = o.run_id
JOIN runs_agentversion v ON v.id = r.agent_version_id
JOIN runs_agent g ON g.id = v.agent_id
LEFT JOIN runs_tool t ON t.id = o.tool_id
LEFT JOIN runs_mcpserver s ON s.id = t.server_id
LEFT JOIN runs_artifact a ON a.run_id = o.run_id AND a.digest = o.arguments_digest AND a.kind = 'arguments'
WHERE o.id = %(operation_id)s
