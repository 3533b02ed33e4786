"""Webhooks also tell that a run has ended and that an operation became uncertain: written where the event is.

Old code that runs beside this one makes channels and messages of requests only, and the database fills in their run. A
message of an event exists only once somebody has made a channel that asks for it.
"""

from importlib import import_module

import approvals.models
import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models

BEFORE = import_module("approvals.migrations.0003_quorum_escalation_edits_and_announcements").GUARDS

# One statement in the transaction that writes the event: the event and its messages are there together or not at all.
# The journal's other columns do not tell the project, nor whether an attempt that failed ended uncertain.
TELL = """
SET LOCAL lock_timeout = '10s';  -- writers of events wait for the trigger no longer than this
CREATE FUNCTION approvals_new_id() RETURNS uuid LANGUAGE sql VOLATILE AS $$
    -- a UUID of version 7, so that messages stand in the order of time
    SELECT encode(set_bit(set_bit(overlay(
        uuid_send(gen_random_uuid())
        PLACING substring(int8send(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6
    ), 52, 1), 53, 1), 'hex')::uuid
$$;

CREATE FUNCTION approvals_tell_of_event() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    told jsonb := NEW.envelope::jsonb;
    of_project text := told->'context'->>'project';
    news text := CASE WHEN NEW.type LIKE 'run.%' THEN 'run.ended' ELSE 'operation.uncertain' END;
    message json;
BEGIN
    IF news = 'operation.uncertain' AND told->'data'->>'status' IS DISTINCT FROM 'uncertain' THEN
        RETURN NULL;
    END IF;
    IF news = 'run.ended' THEN
        message := json_build_object(
            'schema', 'agent-kernel.announcement/1', 'type', news, 'event_id', NEW.event_id, 'project', of_project,
            'run_id', NEW.run_id, 'state', substring(NEW.type FROM 5), 'code', coalesce(told->'data'->>'code', ''),
            'operations', coalesce(told->'data'->'operations', '{}'), 'occurred_at', told->>'occurred_at',
            'sequence', NEW.sequence, 'path', '/api/v1/runs/' || NEW.run_id);
    ELSE
        message := json_build_object(
            'schema', 'agent-kernel.announcement/1', 'type', news, 'event_id', NEW.event_id, 'project', of_project,
            'run_id', NEW.run_id, 'operation_id', NEW.operation_id,
            'tool', coalesce(told->'data'->>'tool', told->'data'->>'model', ''),
            'attempt', told->'data'->'attempt', 'error_class', coalesce(told->'data'->>'error_class', ''),
            'occurred_at', told->>'occurred_at', 'sequence', NEW.sequence,
            'path', '/api/v1/operations/' || NEW.operation_id);
    END IF;
    INSERT INTO approvals_delivery
        (id, event_id, project, run_id, channel_id, occasion, target, body, created_at, next_attempt_at, attempts,
         dropped, last_error)
    SELECT approvals_new_id(), NEW.event_id, of_project, NEW.run_id, c.id,
           CASE news WHEN 'run.ended' THEN 'run_ended' ELSE 'uncertain' END, c.target, message::text,
           clock_timestamp(), clock_timestamp(), 0, '', ''
    FROM approvals_channel c
    WHERE c.project = of_project AND c.retired_at IS NULL AND c.kind = 'webhook' AND news = ANY (c.events);
    RETURN NULL;
END $$;
CREATE TRIGGER kernel_tell AFTER INSERT ON outbox_event FOR EACH ROW
    WHEN (NEW.type IN ('run.completed', 'run.failed', 'run.cancelled', 'tool.failed', 'model.failed'))
    EXECUTE FUNCTION approvals_tell_of_event();

CREATE FUNCTION approvals_message_is_of_its_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.run_id IS NULL OR NEW.project IS NULL THEN
        SELECT project, run_id INTO NEW.project, NEW.run_id FROM approvals_approval WHERE id = NEW.approval_id;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER approvals_message_is_of_its_run BEFORE INSERT ON approvals_delivery
    FOR EACH ROW EXECUTE FUNCTION approvals_message_is_of_its_run();

CREATE OR REPLACE FUNCTION approvals_message_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (OLD.id, OLD.approval_id, OLD.event_id, OLD.channel_id, OLD.occasion, OLD.target, OLD.body)
       IS DISTINCT FROM
       (NEW.id, NEW.approval_id, NEW.event_id, NEW.channel_id, NEW.occasion, NEW.target, NEW.body)
       OR OLD.run_id IS NOT NULL AND (OLD.project, OLD.run_id) IS DISTINCT FROM (NEW.project, NEW.run_id) THEN
        RAISE EXCEPTION 'delivery % is sent as it was written', OLD.id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
"""
TELL_NOT = """
DROP TRIGGER approvals_message_is_of_its_run ON approvals_delivery; DROP FUNCTION approvals_message_is_of_its_run;
DROP TRIGGER kernel_tell ON outbox_event; DROP FUNCTION approvals_tell_of_event;
DROP FUNCTION approvals_new_id;
""" + BEFORE[BEFORE.index("CREATE FUNCTION approvals_message_is_kept") : BEFORE.index("CREATE TRIGGER approvals_message_is_kept")].replace(
    "CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"
)


class Migration(migrations.Migration):

    dependencies = [
        ('approvals', '0003_quorum_escalation_edits_and_announcements'),
        ('outbox', '0006_journal_is_not_emptied'),
    ]

    operations = [
        migrations.AddField(
            model_name='channel',
            name='events',
            field=django.contrib.postgres.fields.ArrayField(base_field=models.CharField(choices=[('approval.requested', 'an approval was requested'), ('run.ended', 'a run has ended'), ('operation.uncertain', 'an operation became uncertain')], max_length=30), db_default=models.Value(['approval.requested'], django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=30), size=None)), default=approvals.models.requests_alone, help_text='What is told there. E-mail tells of approvals only.', size=None),
        ),
        migrations.AddField(
            model_name='delivery',
            name='event_id',
            field=models.UUIDField(help_text='The event that it tells of, where that is no request.', null=True),
        ),
        migrations.AddField(
            model_name='delivery',
            name='project',
            field=models.CharField(help_text='Filled in by the database where it is empty.', max_length=100, null=True),
        ),
        migrations.AddField(
            model_name='delivery',
            name='run_id',
            field=models.UUIDField(null=True),
        ),
        migrations.AlterField(
            model_name='channel',
            name='group',
            field=models.CharField(blank=True, default='', help_text='Of the requests, only those that ask this group; empty: all of them.', max_length=150),
        ),
        migrations.AlterField(
            model_name='delivery',
            name='approval',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='deliveries', to='approvals.approval'),
        ),
        migrations.AlterField(
            model_name='delivery',
            name='occasion',
            field=models.CharField(choices=[('requested', 'Requested'), ('reminder', 'Reminder'), ('run_ended', 'run ended'), ('uncertain', 'Uncertain')], max_length=10),
        ),
        migrations.AddIndex(
            model_name='delivery',
            index=models.Index(fields=['run_id'], name='delivery_of_run'),
        ),
        migrations.AddConstraint(
            model_name='delivery',
            constraint=models.UniqueConstraint(condition=models.Q(('event_id__isnull', False)), fields=('event_id', 'channel'), name='delivery_once_per_event'),
        ),
        migrations.AddConstraint(
            model_name='delivery',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('approval__isnull', False), ('event_id__isnull', True)), models.Q(('approval__isnull', True), ('event_id__isnull', False)), _connector='OR'), name='delivery_tells_of_one_thing'),
        ),
        migrations.RunSQL(TELL, TELL_NOT),
    ]
