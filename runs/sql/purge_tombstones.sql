-- Purged runs of a project of which something is left whose retention is over, too, and that nothing keeps; asked like
-- purge_runs.sql.
SELECT r.ended_at, r.run_id FROM runs_tombstone r
WHERE r.project = %(project)s AND r.operation_id IS NULL AND r.ended_at < %(edge)s::timestamptz {among}
  AND (r.ended_at, r.run_id) > (%(after_end)s::timestamptz, %(after)s::uuid)
  AND NOT EXISTS (
      SELECT FROM runs_hold h WHERE h.project = r.project AND h.released_at IS NULL
        AND (h.scope = 'project' OR h.run_id = r.run_id)
  )
  AND {work}
ORDER BY r.ended_at, r.run_id LIMIT %(runs)s {lock}
