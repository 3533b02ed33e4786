-- Purged runs of a project of which something is left whose retention is over, too, and that nothing keeps.
SELECT r.run_id FROM runs_tombstone r
WHERE r.project = %(project)s AND r.operation_id IS NULL AND r.run_id > %(after)s::uuid
  AND r.ended_at < clock_timestamp() - make_interval(days => %(days)s::int)
  AND NOT EXISTS (
      SELECT FROM runs_hold h WHERE h.project = r.project AND h.released_at IS NULL
        AND (h.scope = 'project' OR h.run_id = r.run_id)
  )
  AND {work}
ORDER BY r.run_id LIMIT %(runs)s {lock}
