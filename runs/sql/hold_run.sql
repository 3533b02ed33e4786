-- Whether a run was asked to stop; a cancel that comes now waits until this transaction has ended.
SELECT cancel_requested_at IS NOT NULL FROM runs_run WHERE id = %(run_id)s FOR NO KEY UPDATE
