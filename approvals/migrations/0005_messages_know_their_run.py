"""Messages of before say which project and run they are of; a batch at a time, beside writers."""

from django.db import migrations

FILL = """
DO $$ BEGIN
    LOOP
        UPDATE approvals_delivery d SET project = a.project, run_id = a.run_id
        FROM approvals_approval a
        WHERE a.id = d.approval_id AND d.id IN (
            SELECT id FROM approvals_delivery WHERE run_id IS NULL AND approval_id IS NOT NULL LIMIT 5000);
        EXIT WHEN NOT FOUND;
        COMMIT;
    END LOOP;
END $$
"""


class Migration(migrations.Migration):
    atomic = False  # each batch is a transaction
    dependencies = [("approvals", "0004_channels_tell_of_runs")]
    operations = [migrations.RunSQL(FILL, migrations.RunSQL.noop)]
