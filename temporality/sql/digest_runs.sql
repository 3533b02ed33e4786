-- What a generation has received of every run, in the order of its key.
SELECT concat_ws(E'\x1e', 'run', project, source_id, run, count, highest, contiguous, unnumbered)
  FROM temporality_progress
 WHERE generation = %(generation)s AND (%(project)s::text = '' OR project = %(project)s)
 ORDER BY project, source_id, run
