"""Operators and admins may have parked events sent again, and give them up."""

from django.contrib.auth.management import create_permissions
from django.contrib.contenttypes.management import create_contenttypes
from django.db import migrations

HANDLES = ("replay_parkedevent", "give_up_parkedevent")
LOOKS = ("view_sourceepoch", "view_periodicjob")


def extend_roles(apps, schema_editor):
    config = apps.get_app_config("outbox")
    config.models_module = True  # otherwise nothing is made for the apps of a migration's state
    create_contenttypes(config, apps=apps, verbosity=0)
    create_permissions(config, apps=apps, verbosity=0)
    config.models_module = None
    permissions = apps.get_model("auth", "Permission").objects.filter(content_type__app_label="outbox")
    for role in apps.get_model("auth", "Group").objects.all():
        match role.name:
            case "operator":
                role.permissions.add(*permissions.filter(codename__in=HANDLES + LOOKS))
            case "admin":
                role.permissions.add(*permissions)
            case "viewer" | "approver" | "auditor":
                role.permissions.add(*permissions.filter(codename__in=LOOKS))


class Migration(migrations.Migration):
    dependencies = [
        ("outbox", "0003_park_queue_epochs_and_jobs"),
        ("runs", "0004_roles"),
    ]
    operations = [migrations.RunPython(extend_roles, migrations.RunPython.noop)]
