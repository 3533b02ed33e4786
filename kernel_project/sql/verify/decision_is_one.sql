-- What was decided has the votes for it: a yes its quorum or a broken glass, a no exactly one, anything else too few (C27).
SELECT a.id AS what FROM approvals_approval a
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE verdict = 'approve') AS yes, count(*) FILTER (WHERE verdict = 'reject') AS no,
        coalesce(bool_or(broke_glass), false) AS broken
    FROM approvals_decision d WHERE d.approval_id = a.id AND d.applied
) votes
WHERE CASE
    WHEN a.state IN ('granted', 'voided') THEN votes.no > 0 OR votes.yes <> a.quorum AND NOT votes.broken
    WHEN a.state = 'rejected' THEN votes.no <> 1
    ELSE votes.no > 0 OR votes.broken OR votes.yes >= a.quorum
END
