-- Applied events of some types, up to a time of happening and a time of knowing: what an item was folded from then.
SELECT e.position, e.source_id, e.event_id, e.project, e.run, e.type, e.subject_id, e.actor_id, e.sequence, e.parents,
       e.received_at, e.quarantine, e.content
  FROM temporality_event e
 WHERE e.project = %(project)s AND e.type = ANY(%(types)s)
   AND (%(run)s::text IS NULL OR e.run = %(run)s)
   AND (%(subject_id)s::text IS NULL OR e.subject_id = %(subject_id)s)
   AND (%(as_of)s::timestamptz IS NULL OR e.occurred_at <= %(as_of)s)
   AND (%(known_at)s::timestamptz IS NULL OR e.received_at <= %(known_at)s)
   AND e.position <= (SELECT position FROM temporality_projector WHERE state = 'live')
   AND NOT EXISTS (
       SELECT 1 FROM temporality_pending p JOIN temporality_projector live ON live.state = 'live'
        WHERE p.generation = live.generation AND p.position = e.position)
   -- what waited for its parent then was not known then
   AND (%(known_at)s::timestamptz IS NULL OR NOT EXISTS (
       SELECT 1 FROM temporality_event parent
        WHERE parent.source_id = e.source_id AND parent.event_id = ANY(e.parents) AND parent.project = e.project
          AND parent.received_at > %(known_at)s))
 ORDER BY e.position
 LIMIT %(limit)s
