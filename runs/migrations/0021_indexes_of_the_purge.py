"""Indexes by which the purge finds what is due, and lighter ones of the audit; built beside writers."""

from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False  # otherwise an index cannot be built beside writers
    dependencies = [("runs", "0020_seals_audit_and_purged_targets")]
    operations = [
        AddIndexConcurrently(
            model_name="run",
            index=models.Index(
                condition=models.Q(("ended_at__isnull", False)), fields=["project", "ended_at", "id"], name="run_ended"
            ),
        ),
        AddIndexConcurrently(
            model_name="tombstone",
            index=models.Index(
                condition=models.Q(("operation_id__isnull", True)),
                fields=["project", "ended_at", "run_id"],
                name="tombstone_due",
            ),
        ),
        RemoveIndexConcurrently(model_name="tombstone", name="tombstone_list"),
        AddIndexConcurrently(
            model_name="auditentry",
            index=models.Index(
                condition=models.Q(("sequence__isnull", False)), fields=["run_id"], name="audit_sealed_of_run"
            ),
        ),
        RemoveIndexConcurrently(model_name="auditentry", name="audit_of_run"),
        # a unique index is what such a constraint is; the table is never without one of the two
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(
                    "CREATE UNIQUE INDEX CONCURRENTLY audit_place ON runs_auditentry (project, sequence)"
                    " WHERE sequence IS NOT NULL",
                    "DROP INDEX audit_place",
                )
            ],
            state_operations=[
                migrations.AddConstraint(
                    model_name="auditentry",
                    constraint=models.UniqueConstraint(
                        condition=models.Q(("sequence__isnull", False)),
                        fields=("project", "sequence"),
                        name="audit_place",
                    ),
                )
            ],
        ),
        migrations.RemoveConstraint(model_name="auditentry", name="audit_chain"),
    ]
