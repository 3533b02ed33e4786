-- All that a dispatch must know of one operation, in one look: the call, its run, its tool as registered now.
SELECT o.*,
    jsonb_build_object('project_id', r.project_id, 'workspace', r.workspace, 'started_by', r.started_by) AS run_facts,
    jsonb_build_object(
        'id', v.id, 'agent_id', v.agent_id, 'version', v.version, 'digest', v.digest,
        'definition', jsonb_build_object('model_timeout_seconds', v.definition -> 'model_timeout_seconds')
    ) AS version_facts,
    g.name AS agent_name,
    to_jsonb(t) AS tool_facts, to_jsonb(s) - 'created_at' AS server_facts, a.body AS arguments_body
FROM runs_operation o
JOIN runs_run r ON r.id = o.run_id
JOIN runs_agentversion v ON v.id = r.agent_version_id
JOIN runs_agent g ON g.id = v.agent_id
LEFT JOIN runs_tool t ON t.id = o.tool_id
LEFT JOIN runs_mcpserver s ON s.id = t.server_id
LEFT JOIN runs_artifact a ON a.run_id = o.run_id AND a.digest = o.arguments_digest AND a.kind = 'arguments'
WHERE o.id = %(operation_id)s
