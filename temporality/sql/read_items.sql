-- Items of one kind as the live projection has them, newest change first or by key, and whether anything about them is
-- held back.
SELECT i.source_id, i.key, i.status, i.run, i.registers, i.changed_at,
       ARRAY(SELECT p.event_id || ': ' || p.reason FROM temporality_pending p
              WHERE p.generation = i.generation AND p.project = i.project AND p.kind = i.kind AND p.key = i.key
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
