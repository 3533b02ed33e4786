"""What else a tool's registration promised when a call was made: pinned like `effect` and the life of its key."""

from importlib import import_module

from django.db import migrations, models

BEFORE = import_module("runs.migrations.0009_earlier_unclear").MOVES
MOVES = BEFORE.replace("OLD.probes, OLD.proposed_at", "OLD.probes, OLD.declared, OLD.proposed_at").replace(
    "NEW.probes, NEW.proposed_at", "NEW.probes, NEW.declared, NEW.proposed_at"
)
assert MOVES.count(".declared") == 2


class Migration(migrations.Migration):
    dependencies = [("runs", "0009_earlier_unclear")]
    operations = [
        migrations.AddField(
            model_name="operation",
            name="declared",
            field=models.JSONField(
                null=True, help_text="What else its tool's registration promised; empty: nobody kept it then."
            ),
        ),
        migrations.RunSQL(MOVES, BEFORE),
    ]
