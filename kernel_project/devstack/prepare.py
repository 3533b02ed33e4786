"""Bring the databases of an embedded stack up to date, with what a developer needs to log in. For development only."""

from __future__ import annotations

import argparse
import os
import time

import django

ADMIN_NAME = "admin"
DATABASE_SECONDS_MAX = 60.0  # PostgreSQL may be replaying its log after a crash
DATABASE_PAUSE_SECONDS = 0.1


def wait_for_database(alias: str) -> None:
    """Return when the database answers. Raises django.db.OperationalError if it does not in time."""
    from django.db import OperationalError, connections

    deadline = time.monotonic() + DATABASE_SECONDS_MAX
    while True:
        try:
            return connections[alias].ensure_connection()
        except OperationalError:
            if time.monotonic() > deadline:
                raise
        time.sleep(DATABASE_PAUSE_SECONDS)


def ensure_admin() -> None:
    """Create the developer's account once; a password that was changed by hand stays as it is."""
    from django.contrib.auth import get_user_model

    from kernel_project.devstack.layout import Layout
    from kernel_project.environment import development_secret

    password = development_secret(Layout.from_environment(), "admin_password")
    users = get_user_model()._default_manager
    if not users.filter(username=ADMIN_NAME).exists():
        users.create_superuser(username=ADMIN_NAME, email="admin@localhost", password=password)


def ensure_temporality() -> None:
    """Migrate the event store's database and give the kernel's token the right to write there."""
    from django.core.management import call_command

    wait_for_database("temporality")
    call_command("migrate", "temporality", database="temporality", interactive=False, verbosity=1)
    rights = ("--name", "kernel", "--role", "writer", "--all-projects")
    call_command("temporality_token", "ensure", *rights, "--token-env", "TEMPORALITY_TOKEN")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--temporality", action="store_true", help="the event store is embedded too")
    options = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kernel_project.settings")
    django.setup()
    from django.conf import settings
    from django.core.management import call_command

    settings.STATIC_ROOT.mkdir(parents=True, exist_ok=True)  # in development the files are served from the apps
    wait_for_database("default")
    call_command("migrate", interactive=False, verbosity=1)
    if options.temporality:
        ensure_temporality()
    ensure_admin()


if __name__ == "__main__":
    main()
