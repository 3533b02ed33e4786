"""Sandboxes that live, and what workers say of their machines."""

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('runs', '0006_edited_arguments_and_the_rule_by_id'),
    ]

    operations = [
        migrations.CreateModel(
            name='SandboxReport',
            fields=[
                ('place', models.CharField(max_length=200, primary_key=True, serialize=False)),
                ('sentence', models.CharField(max_length=300)),
                ('unavailable', models.TextField(blank=True, default='', help_text='Why no command is run there; empty: they are.')),
                ('problems', models.JSONField(default=list)),
                ('reported_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
        ),
        migrations.CreateModel(
            name='Sandbox',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('operation_id', models.UUIDField()),
                ('attempt', models.PositiveIntegerField()),
                ('driver', models.CharField(max_length=20)),
                ('place', models.CharField(help_text='The machine, as far as processes can see each other.', max_length=200)),
                ('worker', models.CharField(help_text='The process that runs it.', max_length=100)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                'verbose_name_plural': 'sandboxes',
                'constraints': [models.UniqueConstraint(fields=('operation_id', 'attempt'), name='sandbox_of_attempt')],
            },
        ),
    ]
