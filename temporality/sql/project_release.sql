-- Say anew what these held-back events wait for, if for anything. Quarantine is not lifted here.
UPDATE temporality_pending p
   SET state = w.state, reason = w.reason
  FROM (SELECT p.id,
               CASE WHEN bool_or(e.state = 'missing') THEN 'waiting'
                    WHEN bool_or(e.state = 'unapplied') THEN 'blocked' ELSE 'ready' END AS state,
               CASE WHEN bool_or(e.state = 'missing') THEN 'a parent has not arrived'
                    WHEN bool_or(e.state = 'unapplied') THEN 'blocked by a parent that is not applied'
                    ELSE '' END AS reason
          FROM temporality_pending p
          LEFT JOIN temporality_edge e ON e.generation = p.generation AND e.position = p.position
         WHERE p.generation = %(generation)s AND p.position = ANY (%(position)s::bigint[]) AND p.state <> 'quarantined'
         GROUP BY p.id) w
 WHERE p.id = w.id
