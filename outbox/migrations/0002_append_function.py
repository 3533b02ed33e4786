"""The append as a function of the database: its plans are kept per session, with or without a pooler in between."""

from django.db import migrations

# A change of its arguments or columns gets a new name: during a deploy old and new code call it side by side.
FUNCTION = """
CREATE FUNCTION outbox_append(given jsonb) RETURNS TABLE (event_id uuid, sequence bigint, stored text)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
-- Number the events of each run and write them. The stream's row lock makes sequences gapless and ordered by commit; it
-- is taken before the journal is looked at, so an event that another transaction has just written is seen as known.
-- `given` is ordered by run; `total` is how many of a run's events are in it. A known event is answered with its old
-- envelope and takes no number.
DECLARE
    event record;
    current_run uuid;
    last bigint;
BEGIN
    FOR event IN SELECT * FROM jsonb_to_recordset(given) AS g (
        run_id uuid, project text, total bigint, event_id uuid, type text, occurred_at timestamptz,
        operation_id uuid, caused_by uuid[], before text, after text)
    LOOP
        IF event.run_id IS DISTINCT FROM current_run THEN
            current_run := event.run_id;
            INSERT INTO outbox_stream AS s (run_id, project, head, published, ready_at, attempts, last_error)
            VALUES (event.run_id, event.project, event.total, 0, clock_timestamp(), 0, '')
            ON CONFLICT (run_id) DO UPDATE
                SET head = s.head + excluded.head, ready_at = coalesce(s.ready_at, excluded.ready_at)
            RETURNING head - event.total INTO last;
        END IF;
        event_id := event.event_id;
        SELECT e.sequence, e.envelope INTO sequence, stored FROM outbox_event e
        WHERE e.run_id = event.run_id AND e.event_id = event.event_id;
        IF FOUND THEN
            UPDATE outbox_stream SET head = head - 1, ready_at = CASE WHEN head - 1 > published THEN ready_at END
            WHERE run_id = current_run;
        ELSE
            last := last + 1;
            sequence := last;
            INSERT INTO outbox_event
                (event_id, run_id, sequence, type, occurred_at, recorded_at, operation_id, caused_by, envelope)
            VALUES (event.event_id, event.run_id, last, event.type, event.occurred_at, clock_timestamp(),
                    event.operation_id, event.caused_by, event.before || last || event.after);
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;
"""


class Migration(migrations.Migration):
    dependencies = [("outbox", "0001_journal")]
    operations = [migrations.RunSQL(FUNCTION, "DROP FUNCTION outbox_append(jsonb)")]
