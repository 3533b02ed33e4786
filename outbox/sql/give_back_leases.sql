-- Free every leased stream: whoever leased them has lost its place. Its tokens match nothing from now on. A stream that
-- somebody is writing to is passed over, so that an open transaction keeps nobody from the place: its lease runs out.
WITH leased AS MATERIALIZED (
    SELECT run_id FROM outbox_stream
    WHERE ready_at IS NOT NULL AND lease_token IS NOT NULL
    ORDER BY run_id FOR UPDATE SKIP LOCKED
)
UPDATE outbox_stream s SET lease_token = NULL, leased_until = NULL
FROM leased WHERE s.run_id = leased.run_id
