-- A request that was granted or rejected has exactly one applied decision, and nobody else's has any (C27).
SELECT a.id AS what FROM approvals_approval a
WHERE (a.state IN ('granted', 'rejected', 'voided'))::int
   <> (SELECT count(*) FROM approvals_decision d WHERE d.approval_id = a.id AND d.applied)
