-- What has been received of these runs of one source; a run of which nothing has arrived has zeros.
SELECT r.run, COALESCE(p.contiguous, 0), COALESCE(p.highest, 0), COALESCE(p.count, 0)
  FROM unnest(%(runs)s::text[]) WITH ORDINALITY AS r (run, place)
  LEFT JOIN temporality_progress p
         ON p.generation = (SELECT generation FROM temporality_projector WHERE state = 'live')
        AND p.project = %(project)s AND p.source_id = %(source_id)s AND p.run = r.run
 ORDER BY r.place
