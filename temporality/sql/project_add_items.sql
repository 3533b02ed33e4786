-- Items that were not there: looked for under the generation's lock, so nobody else can have added them.
INSERT INTO temporality_item (generation, project, kind, source_id, key, status, run, registers, changed_at)
SELECT %(generation)s, i.project, i.kind, i.source_id, i.key, i.status, i.run, i.registers, %(changed_at)s
  FROM unnest(%(project)s::text[], %(kind)s::text[], %(source_id)s::text[], %(key)s::text[], %(status)s::text[],
              %(run)s::text[], string_to_array(%(registers)s, E'\x1e'))
           AS i (project, kind, source_id, key, status, run, registers)
