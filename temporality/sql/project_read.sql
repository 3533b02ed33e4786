-- The next events of the inbox, in its order: so many, and so many bytes, but one at least; with each, how many there are
-- without the bound of bytes. Positions are visible in order, so none can appear behind this one later.
-- The content comes along only where something is made of it. How far the bytes reach is found first, with narrow rows.
WITH next AS MATERIALIZED (
    SELECT position, octet_length(content) AS bytes
      FROM temporality_event
     WHERE position > %(after)s AND position <= %(upto)s
       AND (%(project)s::text = '' OR project = %(project)s)
     ORDER BY position
     LIMIT %(limit)s
), sized AS (
    SELECT position, sum(bytes) OVER (ORDER BY position) - bytes AS bytes_before FROM next
), bound AS MATERIALIZED (
    SELECT max(position) AS reached, (SELECT count(*) FROM next) AS found FROM sized WHERE bytes_before < %(bytes_max)s
)
SELECT position, source_id, event_id, project, run, type, subject_id, actor_id, sequence, parents, received_at,
       quarantine, CASE WHEN quarantine <> '' OR type = ANY (%(folded)s::text[]) THEN content END,
       (SELECT found FROM bound)
  FROM temporality_event
 WHERE position > %(after)s AND position <= (SELECT reached FROM bound)
   AND (%(project)s::text = '' OR project = %(project)s)
 ORDER BY position
