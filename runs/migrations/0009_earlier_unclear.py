"""Whether an attempt before the current one may have had its effect: then no answer of the current one denies it."""

from importlib import import_module

from django.db import migrations, models

BEFORE = import_module("runs.migrations.0006_edited_arguments_and_the_rule_by_id").MOVES
DOUBT = """
    IF OLD.earlier_unclear AND NOT NEW.earlier_unclear
       AND NOT (NEW.state = 'dispatched' AND OLD.state = 'reconciled' AND OLD.verdict = 'none') THEN
        RAISE EXCEPTION 'an earlier attempt of operation % may have had its effect', OLD.id
            USING ERRCODE = 'check_violation';
    END IF;
    IF OLD.earlier_unclear AND OLD.state = 'dispatched' AND NEW.state = 'failed' THEN
        RAISE EXCEPTION 'operation % cannot have failed: an earlier attempt may have had its effect', OLD.id
            USING ERRCODE = 'check_violation';
    END IF;
"""
PLACE = "    IF NEW.attempt < OLD.attempt OR"
assert BEFORE.count(PLACE) == 1
MOVES = BEFORE.replace(PLACE, DOUBT.strip("\n") + "\n" + PLACE)
# Of what is out or unclear now, an earlier attempt may have been unclear: nothing in the row says otherwise.
DOUBTED = """
UPDATE runs_operation SET earlier_unclear = true
WHERE effect = 'write' AND attempt > 1 AND state IN ('dispatched', 'uncertain')
"""


class Migration(migrations.Migration):
    dependencies = [("runs", "0008_fewer_indexes")]
    operations = [
        migrations.AddField(
            model_name="operation",
            name="earlier_unclear",
            field=models.BooleanField(
                db_default=False, default=False,
                help_text="Whether an attempt before the current one may have had its effect.",
            ),
        ),
        migrations.RunSQL(DOUBTED, migrations.RunSQL.noop),
        migrations.RunSQL(MOVES, BEFORE),
    ]
