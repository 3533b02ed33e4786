"""Tools that are HTTP requests; effects that are undone by an operation of their own."""

from django.contrib.auth.management import create_permissions
from django.db import migrations, models
from django.db.models import Q

TRIGGER = """
CREATE FUNCTION runs_compensates_stays() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'what % undoes cannot change', OLD.id USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER runs_operation_compensates BEFORE UPDATE OF compensates_id ON runs_operation
    FOR EACH ROW WHEN (OLD.compensates_id IS DISTINCT FROM NEW.compensates_id)
    EXECUTE FUNCTION runs_compensates_stays();
CREATE TRIGGER runs_run_compensates BEFORE UPDATE OF compensates_id ON runs_run
    FOR EACH ROW WHEN (OLD.compensates_id IS DISTINCT FROM NEW.compensates_id)
    EXECUTE FUNCTION runs_compensates_stays();
"""
BACK = """
DROP TRIGGER runs_run_compensates ON runs_run;
DROP TRIGGER runs_operation_compensates ON runs_operation;
DROP FUNCTION runs_compensates_stays();
"""
KINDS = [("mcp", "MCP"), ("http", "HTTP"), ("python", "Python"), ("sandbox", "Sandbox")]
COMPENSATE = ("compensate_operation", "Can undo effects of operations")


def let_operators_compensate(apps, _):
    config = apps.get_app_config("runs")
    config.models_module = True  # otherwise nothing is made for the apps of a migration's state
    create_permissions(config, apps=apps, verbosity=0)
    config.models_module = None
    found = apps.get_model("auth", "Permission").objects.filter(content_type__app_label="runs", codename=COMPENSATE[0])
    for role in apps.get_model("auth", "Group").objects.filter(name__in=("operator", "admin")):
        role.permissions.add(*found)


class Migration(migrations.Migration):
    dependencies = [("runs", "0004_roles")]
    operations = [
        migrations.AlterModelOptions(
            name="operation",
            options={"permissions": [("reconcile_operation", "Can settle uncertain operations"), COMPENSATE]},
        ),
        migrations.AddField(
            model_name="operation",
            name="compensates_id",
            field=models.UUIDField(help_text="The operation whose effect this one is to undo.", null=True),
        ),
        migrations.AddField(
            model_name="run",
            name="compensates_id",
            field=models.UUIDField(help_text="The operation whose effect this run is to undo.", null=True),
        ),
        migrations.AddField(
            model_name="tool",
            name="compensation",
            field=models.JSONField(
                blank=True,
                help_text="The tool and the arguments that undo its effect; empty: it cannot be undone.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="operation",
            name="kind",
            field=models.CharField(choices=[("model", "Model"), *KINDS], max_length=10),
        ),
        migrations.AlterField(model_name="tool", name="kind", field=models.CharField(choices=KINDS, max_length=10)),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                condition=Q(("compensates_id__isnull", False)), fields=["compensates_id"], name="run_compensates"
            ),
        ),
        migrations.RunSQL(TRIGGER, BACK),
        migrations.RunPython(let_operators_compensate, migrations.RunPython.noop),
    ]
