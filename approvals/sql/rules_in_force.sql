-- The rules that may decide on a call, the latest first; asked at each proposal and each dispatch.
-- One column, for each costs the driver more than its share of one JSON text.
SELECT to_jsonb(p) - '{created_at,retired_at}'::text[] FROM approvals_policy p
WHERE project = %(project)s AND retired_at IS NULL
ORDER BY created_at DESC, id DESC LIMIT %(limit)s
