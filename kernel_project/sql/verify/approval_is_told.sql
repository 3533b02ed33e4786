-- Every request for approval was told as requested, and a decided one with what became of it (F11).
SELECT a.id AS what FROM approvals_approval a
WHERE a.run_id >= %(journal_from)s AND (
    NOT EXISTS (
        SELECT FROM outbox_event e
        WHERE e.run_id = a.run_id AND e.operation_id = a.operation_id AND e.type = 'approval.requested'
    )
    OR a.state IN ('granted', 'rejected', 'expired') AND NOT EXISTS (
        SELECT FROM outbox_event e
        WHERE e.run_id = a.run_id AND e.operation_id = a.operation_id
          AND e.type = 'approval.' || CASE a.state WHEN 'expired' THEN 'timed_out' ELSE a.state END
    )
)
