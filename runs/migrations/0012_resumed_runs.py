"""Failed runs can go on: how often, who asked, and a claim that Temporal has not acknowledged."""

from importlib import import_module

from django.db import migrations, models

make_roles = import_module("runs.migrations.0004_roles").make_roles  # again: there is more to be allowed


class Migration(migrations.Migration):

    dependencies = [
        ('runs', '0011_limits_and_prices'),
    ]

    operations = [
        migrations.AlterModelOptions(
            name='run',
            options={'permissions': [('start_run', 'Can start runs'), ('cancel_run', 'Can cancel runs'), ('resume_run', 'Can let failed runs go on')]},
        ),
        migrations.AddField(
            model_name='run',
            name='resumed_by',
            field=models.CharField(blank=True, db_default='', default='', max_length=200),
        ),
        migrations.AddField(
            model_name='run',
            name='resumed_by_type',
            field=models.CharField(blank=True, db_default='', default='', max_length=10),
        ),
        migrations.AddField(
            model_name='run',
            name='resumes',
            field=models.PositiveIntegerField(db_default=0, default=0, help_text='How often it was to go on after it failed.'),
        ),
        migrations.AddField(
            model_name='run',
            name='resuming_since',
            field=models.DateTimeField(help_text='A resume that Temporal has not acknowledged.', null=True),
        ),
        migrations.AddIndex(
            model_name='run',
            index=models.Index(condition=models.Q(('resuming_since__isnull', False)), fields=['resuming_since'], name='run_resuming'),
        ),
        migrations.RunPython(make_roles, migrations.RunPython.noop),
    ]
