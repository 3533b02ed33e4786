"""The web process: JSON API and admin."""

import os

from django.conf import settings
from django.core.asgi import get_asgi_application

from kernel_project.primitives import traces

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kernel_project.settings")
application = get_asgi_application()
traces.begin(settings.TRACES_URL, "web")
