"""Indexes by which the purge finds what is due; built without keeping anybody from writing."""

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
    ]
