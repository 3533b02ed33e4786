-- Ended runs of a project whose retention is over and that nothing keeps, in the order of their ids, locked for the
-- transaction that deletes. `work` says what there is to do for the class, `lock` is empty when nothing is deleted.
SELECT r.id FROM runs_run r
WHERE r.project_id = %(project)s AND r.id > %(after)s::uuid AND r.state IN ('completed', 'failed', 'cancelled')
  AND r.resuming_since IS NULL
  -- what was undone is known by the run that undid it, as long as there is something to undo
  AND NOT EXISTS (SELECT FROM runs_operation o WHERE o.id = r.compensates_id)
  AND NOT EXISTS (
      SELECT FROM runs_operation o JOIN runs_run c ON c.compensates_id = o.id
      WHERE o.run_id = r.id AND c.state NOT IN ('completed', 'failed', 'cancelled')
  )
  -- how a child ended is taken up by the call that it was for
  AND NOT EXISTS (SELECT FROM runs_operation o WHERE o.id = r.parent_operation_id AND o.state = 'dispatched')
  AND r.ended_at < clock_timestamp() - make_interval(days => %(days)s::int)
  AND NOT EXISTS (
      SELECT FROM runs_hold h WHERE h.project = r.project_id AND h.released_at IS NULL
        AND (h.scope = 'project' OR h.run_id = r.id)
  )
  AND NOT EXISTS (
      SELECT FROM runs_operation o WHERE o.run_id = r.id
        AND o.state IN ('proposed', 'awaiting_approval', 'dispatched', 'uncertain')
  )
  AND NOT EXISTS (SELECT FROM approvals_approval a WHERE a.run_id = r.id AND a.state = 'waiting')
  AND NOT EXISTS (SELECT FROM outbox_stream s WHERE s.run_id = r.id AND s.published < s.head)
  AND NOT EXISTS (SELECT FROM outbox_parkedevent p WHERE p.run_id = r.id AND p.state IN ('parked', 'queued'))
  AND {work}
ORDER BY r.id LIMIT %(runs)s {lock}
