-- The items that a batch touches, as they are.
SELECT i.project, i.kind, i.source_id, i.key, i.registers
  FROM unnest(%(project)s::text[], %(kind)s::text[], %(source_id)s::text[], %(key)s::text[])
           AS k (project, kind, source_id, key)
  JOIN temporality_item i ON i.generation = %(generation)s AND i.project = k.project AND i.kind = k.kind
   AND i.source_id = k.source_id AND i.key = k.key
