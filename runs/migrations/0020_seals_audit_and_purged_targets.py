"""Held bodies may be sealed anew, purged runs can be held, and a purge remembers how far it has looked."""

from importlib import import_module

from django.db import migrations, models

BEFORE = import_module("runs.migrations.0016_retention").GUARDS
KEEP = BEFORE[BEFORE.index("CREATE OR REPLACE FUNCTION") : BEFORE.index("CREATE TRIGGER kernel_hold_body")]
# A rotation of keys changes how a body is sealed, not what it says; its digest would show anything else.
RESEAL = KEEP.replace(
    "BEGIN\n    CASE TG_ARGV[0]",
    """BEGIN
    IF TG_OP = 'UPDATE' AND TG_ARGV[0] = 'artifact' AND current_setting('kernel.reseal', true) = 'on' THEN
        IF OLD.body IS NOT NULL AND NEW.body IS NOT NULL AND to_jsonb(OLD) - 'body' = to_jsonb(NEW) - 'body' THEN
            RETURN NEW;
        END IF;
    END IF;
    CASE TG_ARGV[0]""",
    1,
)


assert RESEAL != KEEP
PLACED = import_module("runs.migrations.0015_legal_holds").GUARDS
PLACED = PLACED[: PLACED.index("CREATE TRIGGER")].replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
# What is left of a purged run can be held by its tombstone.
PURGED_TOO = PLACED.replace(
    "WHERE id = NEW.run_id AND project_id = NEW.project)",
    """WHERE id = NEW.run_id AND project_id = NEW.project)
           AND NOT EXISTS (SELECT FROM runs_tombstone WHERE run_id = NEW.run_id AND operation_id IS NULL
                           AND project = NEW.project)""",
).replace(
    "WHERE id = NEW.operation_id AND run_id = NEW.run_id)",
    """WHERE id = NEW.operation_id AND run_id = NEW.run_id)
           AND NOT EXISTS (SELECT FROM runs_tombstone WHERE operation_id = NEW.operation_id
                           AND run_id = NEW.run_id AND project = NEW.project)""",
)
assert PURGED_TOO.count("runs_tombstone") == 2

AUDIT = import_module("runs.migrations.0017_audit_chain").GUARDS
AUDIT_KEPT = AUDIT[AUDIT.index("CREATE FUNCTION") : AUDIT.index("CREATE TRIGGER")].replace(
    "CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"
)
AUDIT_TOLD = AUDIT[AUDIT.index("CREATE TRIGGER kernel_audit AFTER INSERT ON outbox_event") : AUDIT.index(
    "CREATE FUNCTION runs_audit_console"
)]  # fmt: skip
# The database counts the chain itself: whoever may write to the table can neither put an entry in nor seal another one.
AUDIT_COUNTED = """
CREATE OR REPLACE FUNCTION runs_audit_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    before text;
    told jsonb;
BEGIN
    IF TG_OP = 'INSERT' THEN
        RAISE EXCEPTION 'an audit entry is written by what it tells of, and by nobody else'
            USING ERRCODE = 'restrict_violation';
    END IF;
    IF TG_OP <> 'UPDATE' OR OLD.sequence IS NOT NULL OR NEW.sequence IS NULL
       OR to_jsonb(OLD) - '{project,actor,sequence,previous_hash,hash}'::text[]
          <> to_jsonb(NEW) - '{project,actor,sequence,previous_hash,hash}'::text[] THEN
        RAISE EXCEPTION 'the audit record cannot be changed' USING ERRCODE = 'restrict_violation';
    END IF;
    SELECT hash INTO before FROM runs_auditentry WHERE project = NEW.project AND sequence = NEW.sequence - 1;
    IF before IS NULL AND NEW.sequence <> 1 OR NEW.previous_hash <> coalesce(before, '')
       OR NEW.hash IS DISTINCT FROM encode(sha256(convert_to(concat(
           '[', to_json(NEW.previous_hash), ',', to_json(NEW.project), ',', NEW.sequence, ',', to_json(NEW.action), ',',
           to_json(coalesce(NEW.event_id::text, '')), ',', to_json(coalesce(NEW.run_id::text, '')), ',',
           to_json(NEW.content_hash), ',', to_json(NEW.actor), ',"',
           to_char(NEW.at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), '"]'), 'UTF8')), 'hex') THEN
        RAISE EXCEPTION 'this does not follow what is sealed' USING ERRCODE = 'restrict_violation';
    END IF;
    SELECT envelope::jsonb -> 'context' INTO told FROM outbox_event
    WHERE run_id = NEW.run_id AND event_id = NEW.event_id;
    IF FOUND AND (NEW.project, NEW.actor)
                 IS DISTINCT FROM (coalesce(told ->> 'project', ''), left(told -> 'actor' ->> 'id', 200)) THEN
        RAISE EXCEPTION 'the event tells of another project or actor' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER runs_audit_is_written_by_triggers BEFORE INSERT ON runs_auditentry FOR EACH ROW
    WHEN (pg_trigger_depth() = 0 OR NEW.sequence IS NOT NULL OR NEW.hash <> '')
    EXECUTE FUNCTION runs_audit_is_kept();

DROP TRIGGER kernel_audit ON outbox_event;
""" + AUDIT_TOLD.replace("'event.given_up'", "'event.given_up', 'event.replay_requested'")
AUDIT_BEFORE = f"""
DROP TRIGGER kernel_audit ON outbox_event; {AUDIT_TOLD}
DROP TRIGGER runs_audit_is_written_by_triggers ON runs_auditentry; {AUDIT_KEPT}
"""


class Migration(migrations.Migration):
    dependencies = [("runs", "0019_child_runs_are_found")]
    operations = [
        migrations.RunSQL(RESEAL, KEEP),
        migrations.RunSQL(PURGED_TOO, PLACED),
        migrations.RunSQL(AUDIT_COUNTED, AUDIT_BEFORE),
        migrations.AddField(
            model_name="retentionrule",
            name="looked_until",
            field=models.DateTimeField(help_text="Ends of runs up to which the purge has looked.", null=True),
        ),
        migrations.AddField(
            model_name="retentionrule",
            name="looked_all_at",
            field=models.DateTimeField(help_text="When it last began a look at everything.", null=True),
        ),
    ]
