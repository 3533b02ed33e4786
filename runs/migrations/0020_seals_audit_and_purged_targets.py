"""Held bodies may be sealed anew."""

from importlib import import_module

from django.db import migrations

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


class Migration(migrations.Migration):
    dependencies = [("runs", "0017_audit_chain")]
    operations = [
        migrations.RunSQL(RESEAL, KEEP),
    ]
