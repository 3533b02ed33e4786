"""One child for each call, and found by its parent; built beside writers."""

from django.contrib.postgres.operations import AddConstraintNotValid, AddIndexConcurrently, ValidateConstraint
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False  # otherwise an index cannot be built beside writers
    dependencies = [("runs", "0018_child_runs_and_builds")]
    operations = [
        AddIndexConcurrently(
            model_name="run",
            index=models.Index(
                condition=models.Q(("parent_id__isnull", False)), fields=["parent_id", "id"], name="run_children"
            ),
        ),
        AddConstraintNotValid(
            model_name="run",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("depth", 0), ("parent_id__isnull", True), ("parent_operation_id__isnull", True)),
                    models.Q(
                        ("depth__gte", 1), ("parent_id__isnull", False), ("parent_operation_id__isnull", False)
                    ),
                    _connector="OR",
                ),
                name="run_child_has_a_parent",
            ),
        ),
        ValidateConstraint(model_name="run", name="run_child_has_a_parent"),
        # a unique index is what such a constraint is
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(
                    "CREATE UNIQUE INDEX CONCURRENTLY run_child_of_call ON runs_run (parent_operation_id)"
                    " WHERE parent_operation_id IS NOT NULL",
                    "DROP INDEX run_child_of_call",
                )
            ],
            state_operations=[
                migrations.AddConstraint(
                    model_name="run",
                    constraint=models.UniqueConstraint(
                        condition=models.Q(("parent_operation_id__isnull", False)),
                        fields=("parent_operation_id",),
                        name="run_child_of_call",
                    ),
                )
            ],
        ),
    ]
