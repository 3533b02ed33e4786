-- The next events of the inbox, in its order: so many, and so many bytes, but one at least; with each, how many there are
-- without the bound of bytes. Positions are visible in order, so none can appear behind this one later.
-- The content comes along only where something is made of it.
SELECT position, source_id, event_id, project, run, type, subject_id, actor_id, sequence, parents, received_at,
       quarantine, CASE WHEN quarantine <> '' OR type = ANY (%(folded)s::text[]) THEN content END, found
  FROM (SELECT next.*, count(*) OVER () AS found,
               sum(octet_length(content)) OVER (ORDER BY position) - octet_length(content) AS bytes_before
          FROM (SELECT * FROM temporality_event
                 WHERE position > %(after)s AND position <= %(upto)s
                   AND (%(project)s::text = '' OR project = %(project)s)
                 ORDER BY position
                 LIMIT %(limit)s) next) sized
 WHERE bytes_before < %(bytes_max)s
 ORDER BY position
