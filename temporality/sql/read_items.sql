-- Items of one kind as the live projection has them, by key, and what about them is held back. An approval is a part of
-- its operation, so it lacks what the operation lacks.
SELECT i.source_id, i.key, i.registers,
       ARRAY(SELECT p.event_id || ': ' || p.reason FROM temporality_pending p
              WHERE p.generation = i.generation AND p.project = i.project
                AND p.kind = CASE i.kind WHEN 'approval' THEN 'operation' ELSE i.kind END AND p.key = i.key
                AND (i.kind = 'knowledge' OR p.source_id = i.source_id)
              ORDER BY p.position LIMIT 20)
  FROM temporality_item i
 WHERE i.generation = (SELECT generation FROM temporality_projector WHERE state = 'live')
   AND i.project = %(project)s AND i.kind = %(kind)s
   AND (%(status)s::text IS NULL OR i.status = %(status)s)
   AND (%(key)s::text IS NULL OR i.key = %(key)s)
   AND (%(run)s::text IS NULL OR i.run = %(run)s)
   AND (%(after_source_id)s::text IS NULL OR (i.source_id, i.key) > (%(after_source_id)s, %(after_key)s))
 ORDER BY i.source_id, i.key
 LIMIT %(limit)s
