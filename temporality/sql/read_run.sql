-- One run at every source that reports it: its status, what has arrived of it, and what is held back.
SELECT p.source_id, COALESCE(i.status, 'unknown'), i.registers, p.count, p.highest, p.contiguous, p.unnumbered,
       p.last_received_at,
       (SELECT count(*) FROM temporality_pending h
         WHERE h.generation = p.generation AND h.project = p.project AND h.run = p.run AND h.source_id = p.source_id)
  FROM temporality_progress p
  LEFT JOIN temporality_item i ON i.generation = p.generation AND i.project = p.project AND i.kind = 'run'
        AND i.source_id = p.source_id AND i.key = p.run
 WHERE p.generation = (SELECT generation FROM temporality_projector WHERE state = 'live')
   AND p.project = %(project)s AND p.run = %(run)s
 ORDER BY p.source_id
 LIMIT %(limit)s
