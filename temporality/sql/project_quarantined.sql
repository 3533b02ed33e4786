-- The quarantine, oldest first, to be judged by what is known today.
SELECT e.position, e.source_id, e.event_id, e.project, e.run, e.type, e.subject_id, e.actor_id, e.sequence, e.parents,
       e.received_at, e.quarantine, e.content
  FROM temporality_pending p
  JOIN temporality_event e ON e.position = p.position
 WHERE p.generation = %(generation)s AND p.state = 'quarantined' AND p.position > %(after)s
 ORDER BY p.position
 LIMIT %(limit)s
