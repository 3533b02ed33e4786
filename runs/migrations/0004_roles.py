"""Roles as groups: viewer, operator, approver, auditor, admin. An installation may change them; this only makes them."""

from django.contrib.auth.management import create_permissions
from django.contrib.contenttypes.management import create_contenttypes
from django.db import migrations

OURS = ("outbox", "approvals", "runs", "temporality")
SECRETIVE = ("view_artifact", "view_apikey", "view_idempotencykey", "view_token")  # bodies and who holds which key
DOES = {
    "viewer": (),
    "operator": (
        "view_artifact", "start_run", "cancel_run", "resume_run", "message_run", "reconcile_operation", "change_tool", "change_mcpserver",
    ),
    "approver": ("view_artifact", "decide_approval"),
    "auditor": SECRETIVE,
}


def make_roles(apps, schema_editor):
    for config in apps.get_app_configs():
        config.models_module = True  # otherwise nothing is made for the apps of a migration's state
        create_contenttypes(config, apps=apps, verbosity=0)
        create_permissions(config, apps=apps, verbosity=0)
        config.models_module = None
    fill_roles(apps.get_model("auth", "Group"), apps.get_model("auth", "Permission"))


def fill_roles(groups, permissions):
    ours = permissions.objects.filter(content_type__app_label__in=OURS)
    looks = ours.filter(codename__startswith="view_").exclude(codename__in=SECRETIVE)
    for name, does in DOES.items():
        role, _ = groups.objects.get_or_create(name=name)
        role.permissions.add(*looks, *ours.filter(codename__in=does))
    auditor = groups.objects.get(name="auditor")
    auditor.permissions.add(
        *permissions.objects.filter(content_type__app_label__in=("auth", "admin"), codename__startswith="view_")
    )
    admin, _ = groups.objects.get_or_create(name="admin")
    admin.permissions.add(*ours, *permissions.objects.filter(content_type__app_label__in=("auth", "admin")))


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0003_news_for_workflows"),
        ("approvals", "0002_keep_records_as_they_were"),
        ("outbox", "0001_journal"),
        ("admin", "0003_logentry_add_action_flag_choices"),
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
        ("temporality", "0001_store_events_and_their_projection"),
    ]
    operations = [migrations.RunPython(make_roles, migrations.RunPython.noop)]
