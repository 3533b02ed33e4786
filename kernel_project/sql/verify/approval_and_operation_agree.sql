-- A request and its operation tell the same: who waits is asked, and a no is a no on both sides.
SELECT o.id AS what FROM runs_operation o
LEFT JOIN approvals_approval a ON a.operation_id = o.id AND a.state NOT IN ('voided', 'superseded', 'escalated')
WHERE o.state = 'awaiting_approval' AND coalesce(a.state, '') NOT IN ('waiting', 'granted')
   OR o.state IN ('rejected', 'expired') AND a.state IS DISTINCT FROM o.state
   OR a.state = 'waiting' AND o.state <> 'awaiting_approval'
   OR a.state IN ('rejected', 'expired', 'withdrawn') AND o.state <> a.state
