"""Celery: beat ticks, tasks call services. Nothing needed for correctness lives only in the broker."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kernel_project.settings")

app = Celery("kernel_project")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
