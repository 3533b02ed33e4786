-- Say anew what these held-back events wait for, if for anything; the members of a circle wait for what any of them
-- waits for. Quarantine is not lifted here.
WITH touched AS MATERIALIZED (
    SELECT id, position, circle FROM temporality_pending
     WHERE generation = %(generation)s AND position = ANY (%(position)s::bigint[])
), members AS (
    SELECT id, position, position AS team FROM touched WHERE circle IS NULL
     UNION ALL
    SELECT p.id, p.position, p.circle FROM temporality_pending p
     WHERE p.generation = %(generation)s AND p.circle IN (SELECT circle FROM touched)
), teams AS MATERIALIZED (
    SELECT array_agg(m.id) AS ids, bool_or(e.missing) AS missing, bool_or(e.unapplied) AS unapplied
      FROM members m
     CROSS JOIN LATERAL (
           SELECT COALESCE(bool_or(state = 'missing'), false) AS missing,
                  COALESCE(bool_or(state = 'unapplied'), false) AS unapplied
             FROM temporality_edge e WHERE e.generation = %(generation)s AND e.position = m.position) e
     GROUP BY m.team
), verdicts AS (SELECT unnest(ids) AS id, missing, unapplied FROM teams)
UPDATE temporality_pending p
   SET state = CASE WHEN missing THEN 'waiting' WHEN unapplied THEN 'blocked' ELSE 'ready' END,
       reason = CASE WHEN missing THEN 'a parent has not arrived'
                     WHEN unapplied THEN 'blocked by a parent that is not applied' ELSE '' END
  FROM verdicts v
 WHERE p.id = v.id AND p.state <> 'quarantined'
