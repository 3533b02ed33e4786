from django.db import migrations

START = """
INSERT INTO temporality_head (id, position, received_at) VALUES (1, 0, '0001-01-01Z');
INSERT INTO temporality_projector (generation, state, position, target, project, catalogue, updated_at)
VALUES (1, 'live', 0, 0, '', '', now());
"""

# The head is updated by each batch: room on its page keeps the update in place.
HOT_HEAD = "ALTER TABLE temporality_head SET (fillfactor = 10)"

IMMUTABLE = """
CREATE FUNCTION temporality_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'events are facts: % is refused', TG_OP USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER temporality_event_is_immutable BEFORE UPDATE ON temporality_event
    FOR EACH ROW EXECUTE FUNCTION temporality_refuse_change();
"""


class Migration(migrations.Migration):
    dependencies = [("temporality", "0001_store_events_and_their_projection")]

    operations = [
        migrations.RunSQL(START, "DELETE FROM temporality_head; DELETE FROM temporality_projector"),
        migrations.RunSQL(HOT_HEAD, migrations.RunSQL.noop),
        migrations.RunSQL(IMMUTABLE, "DROP TRIGGER temporality_event_is_immutable ON temporality_event; DROP FUNCTION temporality_refuse_change()"),
    ]
