"""The state machine of operations, held by the database as well (drawn in docs/state-machines.md)."""

from django.db import migrations

TRIGGER = """
CREATE FUNCTION runs_operation_moves() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (OLD.id, OLD.run_id, OLD.project_id, OLD.turn, OLD.position, OLD.kind, OLD.name, OLD.definition_digest,
        OLD.arguments_digest, OLD.effect, OLD.actor)
       IS DISTINCT FROM
       (NEW.id, NEW.run_id, NEW.project_id, NEW.turn, NEW.position, NEW.kind, NEW.name, NEW.definition_digest,
        NEW.arguments_digest, NEW.effect, NEW.actor) THEN
        RAISE EXCEPTION 'the intent of operation % cannot change', OLD.id USING ERRCODE = 'check_violation';
    END IF;
    IF NEW.attempt < OLD.attempt OR NEW.attempt > OLD.attempt + 1 THEN
        RAISE EXCEPTION 'attempt of operation % jumps from % to %', OLD.id, OLD.attempt, NEW.attempt
            USING ERRCODE = 'check_violation';
    END IF;
    IF NEW.attempt = OLD.attempt + 1 AND NEW.state <> 'dispatched' THEN
        RAISE EXCEPTION 'operation % takes an attempt without a dispatch', OLD.id USING ERRCODE = 'check_violation';
    END IF;
    IF NEW.state = OLD.state AND NEW.attempt = OLD.attempt THEN
        RETURN NEW;
    END IF;
    IF NEW.state = 'dispatched' THEN
        IF NEW.attempt = OLD.attempt + 1 AND (
            OLD.state IN ('proposed', 'awaiting_approval', 'dispatched')
            OR OLD.state = 'failed'                                    -- effect none: a bounded retry is safe
            OR OLD.state = 'reconciled' AND OLD.verdict = 'none') THEN
            RETURN NEW;
        END IF;
    ELSIF (OLD.state, NEW.state) IN (
        ('proposed', 'denied'), ('proposed', 'blocked'), ('proposed', 'awaiting_approval'), ('proposed', 'withdrawn'),
        ('awaiting_approval', 'rejected'), ('awaiting_approval', 'expired'), ('awaiting_approval', 'withdrawn'),
        ('awaiting_approval', 'blocked'),
        ('dispatched', 'succeeded'), ('dispatched', 'tool_error'), ('dispatched', 'failed'), ('dispatched', 'uncertain'),
        ('uncertain', 'reconciled')) THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'operation % cannot go from % (attempt %) to % (attempt %)',
        OLD.id, OLD.state, OLD.attempt, NEW.state, NEW.attempt USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER runs_operation_moves BEFORE UPDATE ON runs_operation
    FOR EACH ROW EXECUTE FUNCTION runs_operation_moves();
"""


class Migration(migrations.Migration):
    dependencies = [("runs", "0001_records")]
    operations = [
        migrations.RunSQL(
            TRIGGER, "DROP TRIGGER runs_operation_moves ON runs_operation; DROP FUNCTION runs_operation_moves"
        ),
    ]
