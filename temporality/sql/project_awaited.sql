-- Which parents are waited for at all?
SELECT DISTINCT source_id, parent_event_id
  FROM temporality_edge
 WHERE generation = %(generation)s AND state IN ('missing', 'unapplied')
 LIMIT %(limit)s
