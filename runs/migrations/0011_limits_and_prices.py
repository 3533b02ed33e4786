"""What models cost, and what each call of one is charged for against its run's limits."""

from importlib import import_module

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

make_roles = import_module("runs.migrations.0004_roles").make_roles  # again: there is more to look at


class Migration(migrations.Migration):

    dependencies = [
        ('runs', '0010_declaration_of_the_call'),
    ]

    operations = [
        migrations.AddField(
            model_name='operation',
            name='cost_charged',
            field=models.DecimalField(db_default=0, decimal_places=9, default=0, max_digits=24),
        ),
        migrations.AddField(
            model_name='operation',
            name='cost_reserved',
            field=models.DecimalField(db_default=0, decimal_places=9, default=0, max_digits=24),
        ),
        migrations.AddField(
            model_name='operation',
            name='tokens_charged',
            field=models.BigIntegerField(db_default=0, default=0, help_text="What counts against the run's limit: used, or reserved where nobody knows."),
        ),
        migrations.AddField(
            model_name='operation',
            name='tokens_reserved',
            field=models.BigIntegerField(db_default=0, default=0, help_text='Of them, for the current attempt.'),
        ),
        migrations.CreateModel(
            name='ModelPrice',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('model', models.CharField(help_text='As agents name it, such as openai:NAME.', max_length=200)),
                ('input', models.DecimalField(decimal_places=6, max_digits=14)),
                ('output', models.DecimalField(decimal_places=6, max_digits=14)),
                ('cached_input', models.DecimalField(blank=True, decimal_places=6, help_text='Empty: as much as other input.', max_digits=14, null=True)),
                ('changed_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, to='runs.project')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('project', 'model'), name='model_price')],
            },
        ),
        migrations.RunPython(make_roles, migrations.RunPython.noop),
    ]
