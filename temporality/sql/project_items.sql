-- The items that a batch touches, as they are.
SELECT k.project, k.kind, k.source_id, k.key, i.registers
  FROM unnest(%(project)s::text[], %(kind)s::text[], %(source_id)s::text[], %(key)s::text[])
           AS k (project, kind, source_id, key)
 CROSS JOIN LATERAL (
       SELECT registers FROM temporality_item i
        WHERE i.generation = %(generation)s AND i.project = k.project AND i.kind = k.kind
          AND i.source_id = k.source_id AND i.key = k.key OFFSET 0) i
