-- One run at every source that had reported it: what had happened and had arrived of it by two times, in the columns of
-- read_run. Its state is folded elsewhere. Sequences are unique in a run: up to the first hole, each is its own place.
WITH past AS (
    SELECT e.position, e.source_id, e.sequence, e.received_at,
           row_number() OVER (PARTITION BY e.source_id ORDER BY e.sequence) AS place
      FROM temporality_event e
     WHERE e.project = %(project)s AND e.run = %(run)s
       AND (%(as_of)s::timestamptz IS NULL OR e.occurred_at <= %(as_of)s)
       AND (%(known_at)s::timestamptz IS NULL OR e.received_at <= %(known_at)s)
       AND e.position <= (SELECT position FROM temporality_projector WHERE state = 'live')
)
SELECT t.source_id, 'unknown', NULL, count(t.sequence), COALESCE(max(t.sequence), 0),
       count(*) FILTER (WHERE t.sequence = t.place), count(*) FILTER (WHERE t.sequence IS NULL), max(t.received_at),
       count(h.position)
  FROM past t
  LEFT JOIN temporality_pending h ON h.position = t.position
        AND h.generation = (SELECT generation FROM temporality_projector WHERE state = 'live')
 GROUP BY t.source_id
 ORDER BY t.source_id
 LIMIT %(limit)s
