-- The rules that may decide on a call, the latest first; asked at each proposal and each dispatch.
SELECT * FROM approvals_policy WHERE project = %(project)s AND retired_at IS NULL
ORDER BY created_at DESC, id DESC LIMIT %(limit)s
