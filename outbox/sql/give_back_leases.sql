-- Free every leased stream, in key order: whoever leased them has lost its place. Its tokens match nothing from now on.
WITH leased AS MATERIALIZED (
    SELECT run_id FROM outbox_stream
    WHERE ready_at IS NOT NULL AND lease_token IS NOT NULL
    ORDER BY run_id FOR UPDATE
)
UPDATE outbox_stream s SET lease_token = NULL, leased_until = NULL
FROM leased WHERE s.run_id = leased.run_id
