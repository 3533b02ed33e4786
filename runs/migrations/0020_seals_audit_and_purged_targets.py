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


class Migration(migrations.Migration):
    dependencies = [("runs", "0017_audit_chain")]
    operations = [
        migrations.RunSQL(RESEAL, KEEP),
        migrations.RunSQL(PURGED_TOO, PLACED),
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
