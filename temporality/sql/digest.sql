-- Everything that a generation says, in one order; nothing that depends on when an event arrived.
SELECT 'item', project, kind, source_id, key, status || E'\x1f' || run, registers
  FROM temporality_item WHERE generation = %(generation)s AND (%(project)s::text = '' OR project = %(project)s)
 UNION ALL
SELECT 'run', project, '', source_id, run, '', concat_ws('/', count, highest, contiguous, unnumbered)
  FROM temporality_progress WHERE generation = %(generation)s AND (%(project)s::text = '' OR project = %(project)s)
 UNION ALL
SELECT 'held', project, '', source_id, event_id, state, reason
  FROM temporality_pending WHERE generation = %(generation)s AND (%(project)s::text = '' OR project = %(project)s)
 ORDER BY 1, 2, 3, 4, 5
