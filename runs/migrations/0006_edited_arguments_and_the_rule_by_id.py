"""The rule that judged a call, by id and version; arguments that a person edited before anything left."""

from importlib import import_module

from django.db import migrations, models

MOVES = """
CREATE OR REPLACE FUNCTION runs_operation_moves() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    unsent CONSTANT text[] := ARRAY['proposed', 'awaiting_approval'];
BEGIN
    IF (OLD.id, OLD.run_id, OLD.project_id, OLD.turn, OLD.position, OLD.kind, OLD.tool_id, OLD.name, OLD.call_label,
        OLD.definition_digest, OLD.actor, OLD.effect, OLD.idempotent_for_seconds, OLD.probes, OLD.proposed_at)
       IS DISTINCT FROM
       (NEW.id, NEW.run_id, NEW.project_id, NEW.turn, NEW.position, NEW.kind, NEW.tool_id, NEW.name, NEW.call_label,
        NEW.definition_digest, NEW.actor, NEW.effect, NEW.idempotent_for_seconds, NEW.probes, NEW.proposed_at) THEN
        RAISE EXCEPTION 'the intent of operation % cannot change', OLD.id USING ERRCODE = 'check_violation';
    END IF;
    IF (OLD.arguments_digest, OLD.call_digest, OLD.unique_key, OLD.twin_id, OLD.edited_by)
       IS DISTINCT FROM (NEW.arguments_digest, NEW.call_digest, NEW.unique_key, NEW.twin_id, NEW.edited_by)
       -- A person may edit what nobody has said yes to; the request that stood for it is then superseded.
       AND (OLD.state <> 'awaiting_approval' OR NEW.state <> OLD.state OR OLD.attempt <> 0 OR NEW.edited_by = '') THEN
        RAISE EXCEPTION 'the arguments of operation % cannot change', OLD.id USING ERRCODE = 'check_violation';
    END IF;
    IF (OLD.policy, OLD.policy_id, OLD.policy_version, OLD.policy_answer)
       IS DISTINCT FROM (NEW.policy, NEW.policy_id, NEW.policy_version, NEW.policy_answer)
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
"""
BEFORE = import_module("runs.migrations.0002_state_machine").TRIGGER.partition("CREATE TRIGGER")[0].replace(
    "CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"
)
make_roles = import_module("runs.migrations.0004_roles").make_roles  # again: there are more things to look at


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0005_http_tools_and_compensations"),
        ("approvals", "0003_quorum_escalation_edits_and_announcements"),
    ]
    operations = [
        migrations.AddField(
            model_name="operation",
            name="edited_by",
            field=models.CharField(
                blank=True, db_default="", default="", max_length=200,
                help_text="Who changed the arguments before anything left.",
            ),
        ),
        migrations.AddField(
            model_name="operation",
            name="policy_id",
            field=models.UUIDField(help_text="Empty: no rule matched.", null=True),
        ),
        migrations.AddField(
            model_name="operation", name="policy_version", field=models.PositiveIntegerField(null=True)
        ),
        migrations.RunSQL(MOVES, BEFORE),
        migrations.RunPython(make_roles, migrations.RunPython.noop),
    ]
