-- Refused second versions, newest first, beside the version that stands if it is of a project that the asker may read.
SELECT c.kind, c.source_id, c.event_id, c.run, c.first_seen_at, c.last_seen_at, c.times_seen, c.content, e.content, c.id
  FROM temporality_conflict c
  LEFT JOIN temporality_event e
         ON e.position = c.position AND (%(readable)s::text[] IS NULL OR e.project = ANY (%(readable)s::text[]))
 WHERE c.project = %(project)s
   AND (%(after_id)s::bigint IS NULL OR c.id < %(after_id)s)
 ORDER BY c.id DESC
 LIMIT %(limit)s
