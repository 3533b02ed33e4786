"""The event store's process: `uvicorn kernel_project.asgi_temporality:application`. Needs its own database only."""

import gc
import os
import sys

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kernel_project.settings_temporality")
django.setup()

from kernel_project.settings_temporality import ENV  # noqa: E402
from temporality.server import Application  # noqa: E402

# The projector computes in a thread of this process: with Python's default of 5 ms, each answer would wait so long for
# its turn, several times.
sys.setswitchinterval(0.0005)  # seconds

# A batch makes some thousand objects and no circles: with Python's default of 700, the collector would walk over each
# of them several times.
gc.freeze()
gc.set_threshold(50_000, 20, 20)

application = Application(
    ENV.temporality_database_url,
    connections_max=ENV.temporality_pool_max,
    events_max=ENV.temporality_batch_events_max,
    body_bytes_max=ENV.temporality_body_bytes_max,
    projects=ENV.temporality_projector,
)
