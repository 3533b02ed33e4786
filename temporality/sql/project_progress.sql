-- Count what a batch brought of each run. `contiguous` is only a first answer where numbers came out of order.
INSERT INTO temporality_progress (
    generation, project, source_id, run, count, highest, contiguous, unnumbered, last_received_at)
SELECT %(generation)s, r.project, r.source_id, r.run, r.count, r.highest, 0, r.unnumbered, %(received_at)s
  FROM unnest(%(project)s::text[], %(source_id)s::text[], %(run)s::text[], %(count)s::bigint[], %(highest)s::bigint[],
              %(unnumbered)s::bigint[]) AS r (project, source_id, run, count, highest, unnumbered)
    ON CONFLICT (generation, project, source_id, run) DO UPDATE
   SET count = temporality_progress.count + EXCLUDED.count,
       highest = GREATEST(temporality_progress.highest, EXCLUDED.highest),
       unnumbered = temporality_progress.unnumbered + EXCLUDED.unnumbered,
       last_received_at = GREATEST(temporality_progress.last_received_at, EXCLUDED.last_received_at)
