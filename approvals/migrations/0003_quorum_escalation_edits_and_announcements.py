"""More than one person, another group, other arguments, and messages that go out with the request."""

import django.db.models.deletion
import django.db.models.functions.datetime
import kernel_project.primitives.ids
from django.db import migrations, models


GUARDS = """
CREATE FUNCTION approvals_decision_counts() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    request approvals_approval%ROWTYPE;
BEGIN
    SELECT * INTO request FROM approvals_approval WHERE id = NEW.approval_id;
    IF request.state <> 'waiting' THEN
        RAISE EXCEPTION 'request % is %: nothing can be decided any more', request.id, request.state
            USING ERRCODE = 'check_violation';
    END IF;
    IF NEW.verdict = 'approve' AND request.quorum <= (
        SELECT count(*) FROM approvals_decision
        WHERE approval_id = NEW.approval_id AND applied AND verdict = 'approve') THEN
        RAISE EXCEPTION 'request % has all the votes that it needs', request.id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER approvals_decision_counts BEFORE INSERT ON approvals_decision
    FOR EACH ROW WHEN (NEW.applied) EXECUTE FUNCTION approvals_decision_counts();

CREATE FUNCTION approvals_message_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (OLD.id, OLD.approval_id, OLD.channel_id, OLD.occasion, OLD.target, OLD.body)
       IS DISTINCT FROM (NEW.id, NEW.approval_id, NEW.channel_id, NEW.occasion, NEW.target, NEW.body) THEN
        RAISE EXCEPTION 'delivery % is sent as it was written', OLD.id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER approvals_message_is_kept BEFORE UPDATE ON approvals_delivery
    FOR EACH ROW EXECUTE FUNCTION approvals_message_is_kept();

CREATE FUNCTION approvals_channel_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF to_jsonb(OLD) - 'retired_at' <> to_jsonb(NEW) - 'retired_at' OR OLD.retired_at IS NOT NULL THEN
        RAISE EXCEPTION 'channel % cannot change: make another one', OLD.id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER approvals_channel_is_kept BEFORE UPDATE ON approvals_channel
    FOR EACH ROW EXECUTE FUNCTION approvals_channel_is_kept();
"""
NO_GUARDS = """
DROP TRIGGER approvals_channel_is_kept ON approvals_channel; DROP FUNCTION approvals_channel_is_kept;
DROP TRIGGER approvals_message_is_kept ON approvals_delivery; DROP FUNCTION approvals_message_is_kept;
DROP TRIGGER approvals_decision_counts ON approvals_decision; DROP FUNCTION approvals_decision_counts;
"""


class Migration(migrations.Migration):

    dependencies = [
        ('approvals', '0002_keep_records_as_they_were'),
    ]

    operations = [
        migrations.CreateModel(
            name='Channel',
            fields=[
                ('id', models.UUIDField(default=kernel_project.primitives.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ('project', models.CharField(help_text='Project slug.', max_length=100)),
                ('group', models.CharField(blank=True, default='', help_text='Only requests that ask this group; empty: all of them.', max_length=150)),
                ('kind', models.CharField(choices=[('email', 'e-mail'), ('webhook', 'Webhook')], max_length=10)),
                ('target', models.CharField(blank=True, default='', help_text="Address or URL. An e-mail channel without one writes to the members of the request's group.", max_length=500)),
                ('secret_env', models.CharField(blank=True, default='', help_text='Webhooks: the environment variable that holds the signing secret, KERNEL_WEBHOOK_….', max_length=100)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('created_by', models.CharField(max_length=200)),
                ('retired_at', models.DateTimeField(blank=True, null=True)),
            ],
            options={
                'verbose_name': 'notification channel',
            },
        ),
        migrations.CreateModel(
            name='Delivery',
            fields=[
                ('id', models.UUIDField(default=kernel_project.primitives.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ('occasion', models.CharField(choices=[('requested', 'Requested'), ('reminder', 'Reminder')], max_length=10)),
                ('target', models.CharField(max_length=500)),
                ('body', models.TextField()),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('next_attempt_at', models.DateTimeField(help_text='Empty: it is over.', null=True)),
                ('lease_token', models.UUIDField(null=True)),
                ('attempts', models.PositiveIntegerField(default=0)),
                ('sent_at', models.DateTimeField(null=True)),
                ('dropped', models.CharField(blank=True, default='', help_text='Why it will not be sent any more.', max_length=40)),
                ('last_error', models.CharField(blank=True, default='', max_length=300)),
            ],
            options={
                'verbose_name_plural': 'deliveries',
            },
        ),
        migrations.AlterModelOptions(
            name='approval',
            options={'permissions': [('decide_approval', 'Can approve and reject'), ('break_glass_approval', 'Can approve alone in an emergency')]},
        ),
        migrations.RemoveConstraint(
            model_name='approval',
            name='approval_one_per_operation',
        ),
        migrations.RemoveConstraint(
            model_name='decision',
            name='one_applied_decision',
        ),
        migrations.RemoveIndex(
            model_name='approval',
            name='approval_waiting',
        ),
        migrations.AddField(
            model_name='approval',
            name='break_glass',
            field=models.BooleanField(db_default=False, default=False, help_text='Whether the policy provides for emergencies.'),
        ),
        migrations.AddField(
            model_name='approval',
            name='edited_by',
            field=models.CharField(blank=True, db_default='', default='', help_text='Who wrote these arguments.', max_length=200),
        ),
        migrations.AddField(
            model_name='approval',
            name='escalate_to',
            field=models.CharField(blank=True, db_default='', default='', max_length=150),
        ),
        migrations.AddField(
            model_name='approval',
            name='idempotent_for_seconds',
            field=models.PositiveIntegerField(null=True),
        ),
        migrations.AddField(
            model_name='approval',
            name='probes',
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddField(
            model_name='approval',
            name='quorum',
            field=models.PositiveSmallIntegerField(db_default=1, default=1),
        ),
        migrations.AddField(
            model_name='approval',
            name='risk',
            field=models.PositiveSmallIntegerField(choices=[(1, 'low'), (2, 'medium'), (3, 'high')], db_default=3, default=3),
        ),
        migrations.AddField(
            model_name='approval',
            name='supersedes',
            field=models.UUIDField(help_text='The request in whose place this one stands.', null=True),
        ),
        migrations.AddField(
            model_name='decision',
            name='broke_glass',
            field=models.BooleanField(db_default=False, default=False, help_text='Alone, in an emergency, past group and quorum.'),
        ),
        migrations.AddField(
            model_name='policy',
            name='arguments',
            field=models.JSONField(blank=True, db_default=models.Value([], models.JSONField()), default=list, help_text='Conditions that must all hold, such as [{"path": "$.amount", "range": {"max": 100}}].'),
        ),
        migrations.AddField(
            model_name='policy',
            name='break_glass',
            field=models.BooleanField(db_default=False, default=False, help_text='In an emergency a trusted person outside the group may approve alone, with a reason.'),
        ),
        migrations.AddField(
            model_name='policy',
            name='escalate_to',
            field=models.CharField(blank=True, db_default='', default='', help_text='Group that is asked next, with a deadline of its own.', max_length=150),
        ),
        migrations.AddField(
            model_name='policy',
            name='quorum',
            field=models.PositiveSmallIntegerField(db_default=1, default=1, help_text='How many people must say yes; one no is enough.'),
        ),
        migrations.AlterField(
            model_name='approval',
            name='on_expiry',
            field=models.CharField(choices=[('reject', 'Reject'), ('cancel_run', 'cancel the run'), ('escalate', 'ask another group')], default='reject', max_length=10),
        ),
        migrations.AlterField(
            model_name='approval',
            name='state',
            field=models.CharField(choices=[('waiting', 'Waiting'), ('granted', 'Granted'), ('rejected', 'Rejected'), ('expired', 'Expired'), ('withdrawn', 'Withdrawn'), ('voided', 'voided: the call was no longer the one that was approved'), ('superseded', 'superseded: its arguments were edited'), ('escalated', 'escalated: nobody decided in time, another group was asked')], default='waiting', max_length=10),
        ),
        migrations.AlterField(
            model_name='decision',
            name='verdict',
            field=models.CharField(choices=[('approve', 'approve'), ('reject', 'reject'), ('edit', 'edit the arguments')], max_length=10),
        ),
        migrations.AlterField(
            model_name='policy',
            name='effect',
            field=models.CharField(blank=True, choices=[('read', 'read'), ('write', 'write'), ('opaque', 'write with neither key nor probe')], default='', max_length=6),
        ),
        migrations.AlterField(
            model_name='policy',
            name='on_expiry',
            field=models.CharField(choices=[('reject', 'Reject'), ('cancel_run', 'cancel the run'), ('escalate', 'ask another group')], default='reject', max_length=10),
        ),
        migrations.AddIndex(
            model_name='approval',
            index=models.Index(condition=models.Q(('state', 'waiting')), fields=['deadline_at', 'id'], name='approval_queue'),
        ),
        migrations.AddIndex(
            model_name='approval',
            index=models.Index(fields=['operation_id'], name='approval_of_operation'),
        ),
        migrations.AddIndex(
            model_name='approval',
            index=models.Index(fields=['project', '-requested_at', '-id'], name='approval_list'),
        ),
        migrations.AddConstraint(
            model_name='approval',
            constraint=models.UniqueConstraint(condition=models.Q(('state__in', ('voided', 'superseded', 'escalated')), _negated=True), fields=('operation_id',), name='approval_one_per_operation'),
        ),
        migrations.AddConstraint(
            model_name='decision',
            constraint=models.UniqueConstraint(condition=models.Q(('applied', True)), fields=('approval', 'actor', 'verdict'), name='one_applied_decision_each'),
        ),
        migrations.AddConstraint(
            model_name='decision',
            constraint=models.CheckConstraint(condition=models.Q(('broke_glass', False), models.Q(('verdict', 'approve'), models.Q(('reason', ''), _negated=True)), _connector='OR'), name='broken_glass_has_a_reason'),
        ),
        migrations.AddConstraint(
            model_name='policy',
            constraint=models.CheckConstraint(condition=models.Q(('quorum__gte', 1), ('quorum__lte', 20)), name='policy_quorum_is_a_few'),
        ),
        migrations.AddConstraint(
            model_name='policy',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('on_expiry', 'escalate'), models.Q(('escalate_to', ''), _negated=True)), models.Q(models.Q(('on_expiry', 'escalate'), _negated=True), ('escalate_to', '')), _connector='OR'), name='policy_escalates_to_somebody'),
        ),
        migrations.AddIndex(
            model_name='channel',
            index=models.Index(condition=models.Q(('retired_at__isnull', True)), fields=['project'], name='channel_in_force'),
        ),
        migrations.AddConstraint(
            model_name='channel',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('kind', 'email'), ('secret_env', '')), models.Q(('kind', 'webhook'), models.Q(('target', ''), _negated=True), models.Q(('secret_env', ''), _negated=True)), _connector='OR'), name='channel_webhook_is_signed'),
        ),
        migrations.AddField(
            model_name='delivery',
            name='approval',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='deliveries', to='approvals.approval'),
        ),
        migrations.AddField(
            model_name='delivery',
            name='channel',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='deliveries', to='approvals.channel'),
        ),
        migrations.AddIndex(
            model_name='delivery',
            index=models.Index(condition=models.Q(('next_attempt_at__isnull', False)), fields=['next_attempt_at'], name='delivery_due'),
        ),
        migrations.AddConstraint(
            model_name='delivery',
            constraint=models.UniqueConstraint(fields=('approval', 'channel', 'occasion', 'target'), name='delivery_once_written'),
        ),
        migrations.AddConstraint(
            model_name='delivery',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('dropped', ''), ('next_attempt_at__isnull', False), ('sent_at__isnull', True)), models.Q(('dropped', ''), ('next_attempt_at__isnull', True), ('sent_at__isnull', False)), models.Q(('next_attempt_at__isnull', True), ('sent_at__isnull', True), models.Q(('dropped', ''), _negated=True)), _connector='OR'), name='delivery_is_open_sent_or_dropped'),
        ),
        migrations.RunSQL(GUARDS, NO_GUARDS),
    ]
