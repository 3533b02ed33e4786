-- Number events and write them into the journal; one row for each. The function stands in the migrations.
SELECT event_id, sequence, stored FROM outbox_append(%(events)s::jsonb)
