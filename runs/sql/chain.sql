-- A stretch of the chains, with the hash of each event as it stands in the journal now (NULL: it was purged or dropped).
SELECT a.id, a.project, a.sequence, a.action, a.event_id, a.run_id, a.content_hash, a.actor, a.at, a.detail,
       a.previous_hash, a.hash, encode(sha256(convert_to(e.envelope, 'UTF8')), 'hex')
FROM runs_auditentry a LEFT JOIN outbox_event e ON e.run_id = a.run_id AND e.event_id = a.event_id
WHERE a.sequence IS NOT NULL AND (a.project, a.sequence) > (%(project)s::text, %(sequence)s::bigint)
ORDER BY a.project, a.sequence LIMIT %(entries)s
