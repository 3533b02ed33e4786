"""The state machine of operations, held by the database as well (drawn in docs/state-machines.md)."""

from django.db import migrations

TRIGGER = """
CREATE FUNCTION runs_operation_moves() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    unsent CONSTANT text[] := ARRAY['proposed', 'awaiting_approval'];
BEGIN
    IF (OLD.id, OLD.run_id, OLD.project_id, OLD.turn, OLD.position, OLD.kind, OLD.tool_id, OLD.name, OLD.call_label,
        OLD.definition_digest, OLD.arguments_digest, OLD.call_digest, OLD.unique_key, OLD.twin_id, OLD.actor,
        OLD.effect, OLD.idempotent_for_seconds, OLD.probes, OLD.proposed_at)
       IS DISTINCT FROM
       (NEW.id, NEW.run_id, NEW.project_id, NEW.turn, NEW.position, NEW.kind, NEW.tool_id, NEW.name, NEW.call_label,
        NEW.definition_digest, NEW.arguments_digest, NEW.call_digest, NEW.unique_key, NEW.twin_id, NEW.actor,
        NEW.effect, NEW.idempotent_for_seconds, NEW.probes, NEW.proposed_at) THEN
        RAISE EXCEPTION 'the intent of operation % cannot change', OLD.id USING ERRCODE = 'check_violation';
    END IF;
    IF (OLD.policy, OLD.policy_answer) IS DISTINCT FROM (NEW.policy, NEW.policy_answer)
       AND OLD.state <> ALL (unsent) THEN
        RAISE EXCEPTION 'operation % was judged before it left; that cannot change', OLD.id
            USING ERRCODE = 'check_violation';
    END IF;
    IF NEW.attempt < OLD.attempt OR NEW.attempt > OLD.attempt + 1 THEN
        RAISE EXCEPTION 'attempt of operation % jumps from % to %', OLD.id, OLD.attempt, NEW.attempt
            USING ERRCODE = 'check_violation';
    END IF;
    IF NEW.attempt = OLD.attempt + 1 AND NEW.state <> 'dispatched' THEN
        RAISE EXCEPTION 'operation % takes an attempt without a dispatch', OLD.id USING ERRCODE = 'check_violation';
    END IF;
    IF NEW.state = OLD.state AND NEW.attempt = OLD.attempt THEN
        -- An outcome stays as it was written. Only a late result corrects a verdict, and only towards `occurred`.
        IF OLD.state IN ('succeeded', 'tool_error', 'failed', 'uncertain', 'reconciled')
           AND (OLD.result_digest, OLD.verdict, OLD.error_class)
               IS DISTINCT FROM (NEW.result_digest, NEW.verdict, NEW.error_class)
           AND NOT (OLD.state = 'reconciled' AND OLD.verdict IN ('none', 'unknown') AND NEW.verdict = 'occurred') THEN
            RAISE EXCEPTION 'the outcome of operation % cannot change', OLD.id USING ERRCODE = 'check_violation';
        END IF;
        RETURN NEW;
    END IF;
    IF NEW.state = 'dispatched' THEN
        IF NEW.attempt = OLD.attempt + 1 AND (
            OLD.state IN ('proposed', 'awaiting_approval', 'dispatched')
            OR OLD.state = 'failed' AND OLD.kind = 'model'             -- effect none: a bounded retry is safe
            OR OLD.state = 'reconciled' AND OLD.verdict = 'none') THEN
            RETURN NEW;
        END IF;
    ELSIF (OLD.state, NEW.state) IN (
        ('proposed', 'denied'), ('proposed', 'blocked'), ('proposed', 'awaiting_approval'), ('proposed', 'withdrawn'),
        ('awaiting_approval', 'rejected'), ('awaiting_approval', 'expired'), ('awaiting_approval', 'withdrawn'),
        ('awaiting_approval', 'denied'), ('awaiting_approval', 'blocked'),
        ('dispatched', 'succeeded'), ('dispatched', 'tool_error'), ('dispatched', 'failed'), ('dispatched', 'uncertain'),
        ('uncertain', 'reconciled'))
        OR OLD.state = 'reconciled' AND OLD.verdict = 'none' AND NEW.state IN ('blocked', 'withdrawn') THEN
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
