-- Events that were held back and may be applied now, and those behind them that may become so with them: each with the
-- parents that it still waits for. So many, and so many bytes, what is released first, but one at least.
WITH RECURSIVE down AS (
    SELECT p.position, p.source_id, p.event_id, true AS released
      FROM temporality_pending p
     WHERE p.generation = %(generation)s AND p.state = 'ready'
     UNION
    SELECT p.position, p.source_id, p.event_id, false
      FROM down
     CROSS JOIN LATERAL (
           SELECT e.position, e.state FROM temporality_edge e
            WHERE e.generation = %(generation)s AND e.source_id = down.source_id
              AND e.parent_event_id = down.event_id OFFSET 0) e
     CROSS JOIN LATERAL (
           SELECT p.position, p.source_id, p.event_id, p.state, p.circle FROM temporality_pending p
            WHERE p.generation = %(generation)s AND p.position = e.position OFFSET 0) p
     WHERE e.state = 'unapplied' AND p.state = 'blocked' AND p.circle IS NULL
), bounded AS (SELECT position, released FROM down LIMIT %(limit)s
), sized AS (
    SELECT v.position,
           sum(octet_length(v.content)) OVER (ORDER BY NOT bounded.released, v.position) - octet_length(v.content)
               AS bytes_before
      FROM bounded
     CROSS JOIN LATERAL (
           SELECT position, content FROM temporality_event v WHERE v.position = bounded.position OFFSET 0) v
)
SELECT e.position, e.source_id, e.event_id, e.project, e.run, e.type, e.subject_id, e.actor_id, e.sequence, e.parents,
       e.received_at, e.quarantine, e.content,
       ARRAY(SELECT d.parent_event_id FROM temporality_edge d
              WHERE d.generation = %(generation)s AND d.position = e.position AND d.state IN ('missing', 'unapplied'))
  FROM sized
 CROSS JOIN LATERAL (SELECT * FROM temporality_event v WHERE v.position = sized.position OFFSET 0) e
 WHERE sized.bytes_before < %(bytes_max)s
 ORDER BY e.position
