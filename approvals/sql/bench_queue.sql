-- Requests that wait, as many as asked for: of three groups, with different ages, deadlines, risks and makers.
INSERT INTO approvals_approval (
    id, project, run_id, operation_id, agent, tool, effect, binding, binding_hash, arguments_hash, policy_name, "group",
    four_eyes, on_expiry, requested_by, state, requested_at, deadline_at, decided_by, reason, risk
)
SELECT
    gen_random_uuid(), %(project)s, gen_random_uuid(), gen_random_uuid(), 'clerk', 'pay', 'write', repeat('x', 2000), '',
    '', 'rule v1', CASE n %% 3 WHEN 0 THEN 'finance' ELSE '' END, n %% 5 = 0, 'reject',
    CASE n %% 7 WHEN 0 THEN 'anna' ELSE 'somebody' END, 'waiting', now() - make_interval(mins => n),
    now() + make_interval(mins => n), '', '', 1 + n %% 3
FROM generate_series(1, %(count)s) AS n
