"""The web process: JSON API and admin."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kernel_project.settings")
application = get_asgi_application()
