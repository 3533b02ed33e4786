-- Runs in which a sequence is missing, with the first missing numbers.
SELECT p.source_id, p.run, p.contiguous, p.highest, p.count, p.last_received_at, p.contiguous + 1,
       (SELECT min(e.sequence) - 1 FROM temporality_event e
         WHERE e.source_id = p.source_id AND e.run = p.run AND e.sequence > p.contiguous)
  FROM temporality_progress p
 WHERE p.generation = (SELECT generation FROM temporality_projector WHERE state = 'live')
   AND p.project = %(project)s AND p.contiguous < p.highest
 ORDER BY p.id
 LIMIT %(limit)s
