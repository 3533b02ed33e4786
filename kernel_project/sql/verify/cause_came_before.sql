-- An event's causes are events of the same run that were written before it (O3, O5).
SELECT e.event_id AS what FROM outbox_event e CROSS JOIN LATERAL unnest(e.caused_by) AS named (cause)
WHERE NOT EXISTS (
    SELECT FROM outbox_event c WHERE c.run_id = e.run_id AND c.event_id = named.cause AND c.sequence < e.sequence
)
