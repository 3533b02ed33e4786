"""TRUNCATE goes by the triggers of rows: a trigger of the statement refuses it, on the journal and on each month."""

from django.db import migrations

from outbox import partitions

# As made by 0001, and now for whole tables, too; months made later get their trigger from `partitions`.
FUNCTION = """
CREATE OR REPLACE FUNCTION outbox_event_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        IF current_setting('kernel.purge', true) = 'on' THEN
            RETURN NULL;
        END IF;
        RAISE EXCEPTION 'the journal (%) is immutable', TG_TABLE_NAME;
    END IF;
    IF TG_OP = 'DELETE' AND current_setting('kernel.purge', true) = 'on' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'event % of run % is immutable', OLD.event_id, OLD.run_id;
END $$;
"""


def guard(apps, schema_editor):
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'outbox_event'::regclass"
            " ORDER BY 1 LIMIT %s",
            [partitions.PARTITIONS_MAX],
        )
        for name in ["outbox_event", *(name for [name] in cursor.fetchall())]:
            cursor.execute(partitions.guard_against_truncate(name))


class Migration(migrations.Migration):
    dependencies = [("outbox", "0005_replays_wait_their_turn")]
    operations = [
        migrations.RunSQL(FUNCTION, migrations.RunSQL.noop),
        migrations.RunPython(guard, migrations.RunPython.noop),
    ]
