-- Say anew what these held-back events wait for, if for anything; the members of a circle wait for what any of them
-- waits for. Quarantine is not lifted here.
WITH touched AS (
    SELECT position, circle FROM temporality_pending
     WHERE generation = %(generation)s AND position = ANY (%(position)s::bigint[])
), members AS (
    SELECT position, position AS team FROM touched WHERE circle IS NULL
     UNION
    SELECT p.position, p.circle FROM temporality_pending p
     WHERE p.generation = %(generation)s AND p.circle IN (SELECT circle FROM touched)
), wait AS (
    SELECT m.team, COALESCE(bool_or(e.state = 'missing'), false) AS missing,
           COALESCE(bool_or(e.state = 'unapplied'), false) AS unapplied
      FROM members m
      LEFT JOIN temporality_edge e ON e.generation = %(generation)s AND e.position = m.position
     GROUP BY m.team
)
UPDATE temporality_pending p
   SET state = CASE WHEN missing THEN 'waiting' WHEN unapplied THEN 'blocked' ELSE 'ready' END,
       reason = CASE WHEN missing THEN 'a parent has not arrived'
                     WHEN unapplied THEN 'blocked by a parent that is not applied' ELSE '' END
  FROM members m
  JOIN wait w ON w.team = m.team
 WHERE p.generation = %(generation)s AND p.position = m.position AND p.state <> 'quarantined'
