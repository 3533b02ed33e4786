-- Begin a run's next turn, unless the run was asked to stop. The run's row is locked first of all.
UPDATE runs_run
SET state = 'running', started_at = coalesce(started_at, statement_timestamp()), turn = %(turn)s, waiting_for = '',
    build_id = %(build_id)s
WHERE id = %(run_id)s AND state IN ('starting', 'running') AND cancel_requested_at IS NULL
