"""When Temporal was last asked about a run: of many that do not move, each has its turn."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('runs', '0013_messages_to_runs'),
    ]

    operations = [
        migrations.AddField(
            model_name='run',
            name='looked_at',
            field=models.DateTimeField(help_text='When Temporal was last asked why it does not move.', null=True),
        ),
    ]
