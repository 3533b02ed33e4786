-- Store a batch. Answers the places (1..count) of the events that are new; the others exist already in some way.
-- The head's row lock comes first, so that all ingest is in one order: no deadlock, and positions are visible in their
-- order. ON CONFLICT looks at what is committed, not at the snapshot, so waiting for that lock cannot deceive it.
WITH head AS (
    UPDATE temporality_head
       SET position = position + %(count)s, received_at = GREATEST(clock_timestamp(), received_at)
     WHERE id = 1
 RETURNING position - %(count)s AS base, received_at
)
INSERT INTO temporality_event (
    position, source_id, event_id, project, run, task, actor_id, type, subject_id, sequence, parents,
    occurred_at, received_at, quarantine, content, raw)
SELECT head.base + e.place, e.source_id, e.event_id, e.project, e.run, e.task, e.actor_id, e.type, e.subject_id,
       e.sequence, e.parents::text[], e.occurred_at, head.received_at, e.quarantine,
       e.content, NULLIF(e.raw, '')
  FROM head,
       unnest(%(source_id)s::text[], %(event_id)s::text[], %(project)s::text[], %(run)s::text[], %(task)s::text[],
              %(actor_id)s::text[], %(type)s::text[], %(subject_id)s::text[], %(sequence)s::bigint[],
              %(parents)s::text[], %(occurred_at)s::timestamptz[], %(quarantine)s::text[],
              string_to_array(%(content)s, E'\x1e'), string_to_array(%(raw)s, E'\x1e'))
           WITH ORDINALITY AS e (source_id, event_id, project, run, task, actor_id, type, subject_id, sequence,
                                 parents, occurred_at, quarantine, content, raw, place)
    ON CONFLICT DO NOTHING
RETURNING position - (SELECT base FROM head)
