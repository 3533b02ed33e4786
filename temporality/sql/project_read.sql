-- The next events of the inbox, in its order. Positions are visible in order, so none can appear behind this one later.
SELECT position, source_id, event_id, project, run, type, subject_id, actor_id, sequence, parents, received_at, quarantine, content
  FROM temporality_event
 WHERE position > %(after)s AND position <= %(upto)s AND (%(project)s::text = '' OR project = %(project)s)
 ORDER BY position
 LIMIT %(limit)s
