"""What is said to runs that are under way, and which turn reads it."""

from importlib import import_module

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

make_roles = import_module("runs.migrations.0004_roles").make_roles  # again: there is more to be allowed


class Migration(migrations.Migration):

    dependencies = [
        ('runs', '0012_resumed_runs'),
    ]

    operations = [
        migrations.AlterModelOptions(
            name='run',
            options={'permissions': [('start_run', 'Can start runs'), ('cancel_run', 'Can cancel runs'), ('resume_run', 'Can let failed runs go on'), ('message_run', 'Can say something to running runs')]},
        ),
        migrations.AddField(
            model_name='run',
            name='messages',
            field=models.PositiveIntegerField(db_default=0, default=0, help_text='Said to it since its start.'),
        ),
        migrations.CreateModel(
            name='RunMessage',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('number', models.PositiveIntegerField(help_text='1, 2, … in the run.')),
                ('digest', models.CharField(help_text='Artifact with the text.', max_length=64)),
                ('sent_by', models.CharField(max_length=200)),
                ('key_hash', models.CharField(blank=True, default='', max_length=64)),
                ('turn', models.PositiveIntegerField(null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('run', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, to='runs.run')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('run', 'number'), name='run_message_number'), models.UniqueConstraint(condition=models.Q(('key_hash', ''), _negated=True), fields=('run', 'sent_by', 'key_hash'), name='run_message_key')],
            },
        ),
        migrations.RunPython(make_roles, migrations.RunPython.noop),
    ]
