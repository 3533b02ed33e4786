"""A ring of samples for the chart of the last hour. Old code does not know it and needs nothing from it."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("outbox", "0006_journal_is_not_emptied")]

    operations = [
        migrations.CreateModel(
            name="LagSample",
            fields=[
                ("slot", models.SmallIntegerField(primary_key=True, serialize=False)),
                ("at", models.DateTimeField()),
                ("pending", models.BigIntegerField()),
                ("oldest_seconds", models.FloatField()),
            ],
        ),
    ]
