-- The holds in force of a project, and how many of its ended runs each keeps.
SELECT h.id, h.scope, (
    SELECT count(*) FROM runs_run r
    WHERE r.project_id = h.project AND r.ended_at IS NOT NULL AND (h.scope = 'project' OR r.id = h.run_id)
) FROM runs_hold h WHERE h.project = %(project)s AND h.released_at IS NULL ORDER BY h.id LIMIT %(holds)s
