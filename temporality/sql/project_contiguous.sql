-- Move `contiguous` of the touched runs over everything that is there without a hole. Sequences are unique in a run, so
-- as many events as the highest number means that none is missing; only otherwise the numbers are walked.
UPDATE temporality_progress p
   SET contiguous = CASE WHEN p.count = p.highest THEN p.highest ELSE p.contiguous + (
       SELECT count(*)
         FROM (SELECT e.sequence, row_number() OVER (ORDER BY e.sequence) AS place
                 FROM temporality_event e
                WHERE e.source_id = p.source_id AND e.run = p.run AND e.project = p.project
                  AND e.sequence > p.contiguous AND e.position <= %(upto)s) following
        WHERE following.sequence = p.contiguous + following.place) END
  FROM unnest(%(project)s::text[], %(source_id)s::text[], %(run)s::text[], %(sequences)s::text[])
           AS r (project, source_id, run, sequences)
 WHERE p.generation = %(generation)s AND p.project = r.project AND p.source_id = r.source_id AND p.run = r.run
   AND p.contiguous < p.highest
   AND (p.count = p.highest OR p.contiguous + 1 = ANY (r.sequences::bigint[]))
