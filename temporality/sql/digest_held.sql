-- What a generation holds back, and why, in one order that is not that of arrival.
SELECT concat_ws(E'\x1e', 'held', project, source_id, event_id, state, reason)
  FROM temporality_pending
 WHERE generation = %(generation)s AND (%(project)s::text = '' OR project = %(project)s)
 ORDER BY project, source_id, event_id
