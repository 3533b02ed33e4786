-- Every item of a generation, in the order of its key; nothing that depends on when an event arrived.
SELECT concat_ws(E'\x1e', 'item', project, kind, source_id, key, status, run, registers)
  FROM temporality_item
 WHERE generation = %(generation)s AND (%(project)s::text = '' OR project = %(project)s)
 ORDER BY project, kind, source_id, key
