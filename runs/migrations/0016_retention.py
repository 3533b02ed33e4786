"""What is kept for how long, what is left of what went, and receipts."""

from importlib import import_module

import django.db.models.functions.datetime
from django.db import migrations, models

import kernel_project.primitives.ids

BEFORE = import_module("runs.migrations.0015_legal_holds").GUARDS
FUNCTION = BEFORE[BEFORE.index("CREATE FUNCTION runs_keep_what_is_held") : BEFORE.index("CREATE FUNCTION runs_not_emptied")]
# The same for an UPDATE that takes an artifact's bytes away.
GUARDS = (
    FUNCTION.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION").replace("RETURN OLD", "RETURN coalesce(NEW, OLD)")
    + """
CREATE TRIGGER kernel_hold_body BEFORE UPDATE OF digest, run_id, purged_at, body ON runs_artifact
    FOR EACH ROW EXECUTE FUNCTION runs_keep_what_is_held('artifact');
CREATE TRIGGER kernel_hold BEFORE DELETE ON runs_tombstone
    FOR EACH ROW EXECUTE FUNCTION runs_keep_what_is_held('named');
CREATE TRIGGER kernel_hold_whole BEFORE TRUNCATE ON runs_tombstone
    FOR EACH STATEMENT EXECUTE FUNCTION runs_not_emptied_while_held();
"""
)


class Migration(migrations.Migration):
    dependencies = [("runs", "0015_legal_holds")]
    operations = [
        migrations.CreateModel(
            name='Purge',
            fields=[
                ('id', models.UUIDField(default=kernel_project.primitives.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ('project', models.CharField(max_length=100)),
                ('counts', models.JSONField(default=dict, help_text='Rows by class, written with the rows that went.')),
                ('started_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('beat_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), help_text='The last batch.')),
                ('ended_at', models.DateTimeField(null=True)),
                ('outcome', models.CharField(blank=True, default='', help_text='completed or interrupted', max_length=20)),
            ],
        ),
        migrations.CreateModel(
            name='RetentionRule',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('project', models.CharField(help_text='Project slug.', max_length=100)),
                ('record_class', models.CharField(choices=[('artifact.input', 'inputs of runs'), ('artifact.arguments', 'arguments and prompts'), ('artifact.result', 'results and answers'), ('artifact.log', 'logs'), ('runs', 'runs with their operations'), ('events', 'the journal of runs that are purged'), ('approvals', 'requests, decisions and messages of runs that are purged'), ('idempotency_keys', 'idempotency keys of runs that are purged')], max_length=20)),
                ('days', models.PositiveIntegerField(help_text='After the end of the run.')),
                ('set_by', models.CharField(max_length=200)),
                ('set_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
        ),
        migrations.CreateModel(
            name='Tombstone',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('project', models.CharField(max_length=100)),
                ('run_id', models.UUIDField()),
                ('operation_id', models.UUIDField(help_text='Empty: of the run itself.', null=True)),
                ('unique_key', models.CharField(blank=True, default='', max_length=64)),
                ('digest', models.CharField(help_text="Of the run's input, or of the operation's arguments.", max_length=64)),
                ('ended_at', models.DateTimeField(help_text='When the run ended.')),
                ('purged_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
        ),
        migrations.AddField(
            model_name='artifact',
            name='purged_at',
            field=models.DateTimeField(help_text='Its retention is over: the bytes are gone, the claim stays.', null=True),
        ),
        migrations.AddIndex(
            model_name='artifact',
            index=models.Index(condition=models.Q(('body__isnull', True)), fields=['digest'], name='artifact_stored'),
        ),
        migrations.AddIndex(
            model_name='purge',
            index=models.Index(condition=models.Q(('ended_at__isnull', True)), fields=['beat_at'], name='purge_at_work'),
        ),
        migrations.AddConstraint(
            model_name='retentionrule',
            constraint=models.UniqueConstraint(fields=('project', 'record_class'), name='retention_rule'),
        ),
        migrations.AddConstraint(
            model_name='retentionrule',
            constraint=models.CheckConstraint(condition=models.Q(('days__gte', 1)), name='retention_is_a_time'),
        ),
        migrations.AddIndex(
            model_name='tombstone',
            index=models.Index(condition=models.Q(('unique_key', ''), _negated=True), fields=['project', 'unique_key'], name='tombstone_unique_key'),
        ),
        migrations.AddIndex(
            model_name='tombstone',
            index=models.Index(condition=models.Q(('operation_id__isnull', True)), fields=['project', 'run_id'], name='tombstone_list'),
        ),
        migrations.AddConstraint(
            model_name='tombstone',
            constraint=models.UniqueConstraint(condition=models.Q(('operation_id__isnull', True)), fields=('run_id',), name='tombstone_of_run'),
        ),
        migrations.AddConstraint(
            model_name='tombstone',
            constraint=models.UniqueConstraint(condition=models.Q(('operation_id__isnull', False)), fields=('operation_id',), name='tombstone_of_operation'),
        ),
        migrations.AddIndex(
            model_name="idempotencykey",
            index=models.Index(fields=["run_id"], name="idempotency_key_of_run"),
        ),
        migrations.RunSQL(GUARDS, "DROP TRIGGER kernel_hold_body ON runs_artifact"),
    ]
