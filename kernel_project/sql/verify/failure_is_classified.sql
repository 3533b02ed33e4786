-- Every failed call was told with its error's class, and with what is known of its effect (F2).
SELECT e.event_id AS what FROM outbox_event e
WHERE e.type = 'tool.failed' AND (
    e.operation_id IS NULL OR coalesce(e.envelope::jsonb #>> '{data,error_class}', '') = ''
    OR coalesce(e.envelope::jsonb #>> '{data,effect}', '') NOT IN ('none', 'uncertain', 'occurred')
)
