-- The text that is sent says the same as the row beside it: id, type, run, number and causes (I4, O1, O2).
SELECT e.event_id AS what FROM outbox_event e
CROSS JOIN LATERAL (SELECT e.envelope::jsonb AS sent OFFSET 0) text
WHERE sent ->> 'event_id' IS DISTINCT FROM e.event_id::text OR sent ->> 'type' IS DISTINCT FROM e.type
   OR sent #>> '{context,run}' IS DISTINCT FROM e.run_id::text
   OR (sent #>> '{data,sequence}')::bigint IS DISTINCT FROM e.sequence
   OR jsonb_array_length(sent #> '{data,caused_by}') <> cardinality(e.caused_by)
