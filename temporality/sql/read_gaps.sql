-- Runs in which a sequence is missing, with the first missing numbers, by source and run.
SELECT p.source_id, p.run, p.contiguous, p.highest, p.count, p.last_received_at, p.contiguous + 1,
       (SELECT min(e.sequence) - 1 FROM temporality_event e
         WHERE e.source_id = p.source_id AND e.run = p.run AND e.sequence > p.contiguous),
       p.source_id, p.run
  FROM temporality_progress p
 WHERE p.generation = (SELECT generation FROM temporality_projector WHERE state = 'live')
   AND p.project = %(project)s AND p.contiguous < p.highest
   AND (%(after_source_id)s::text IS NULL OR (p.source_id, p.run) > (%(after_source_id)s, %(after_run)s))
 ORDER BY p.source_id, p.run
 LIMIT %(limit)s
