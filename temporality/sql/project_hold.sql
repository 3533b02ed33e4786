-- Hold events back: each with the reason.
INSERT INTO temporality_pending (
    generation, position, project, source_id, event_id, type, run, kind, key, state, reason, received_at)
SELECT %(generation)s, e.position, e.project, e.source_id, e.event_id, e.type, e.run, h.kind, h.key, h.state, h.reason,
       e.received_at
  FROM unnest(%(position)s::bigint[], %(kind)s::text[], %(key)s::text[], %(state)s::text[], %(reason)s::text[])
           AS h (position, kind, key, state, reason)
  JOIN temporality_event e ON e.position = h.position
    ON CONFLICT (generation, position) DO UPDATE SET state = EXCLUDED.state, reason = EXCLUDED.reason
