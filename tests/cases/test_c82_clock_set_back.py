"""C82. The database's clock goes back two hours just when a publisher was killed: delivery goes on within seconds."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from django.db.models import F
from django.db.models.functions import Now

from kernel_project.primitives.ids import new_id
from outbox import place
from outbox.models import Destination, Stream
from outbox.publisher import NullSink, Publisher
from tests.outbox_scene import pending, write

pytestmark = pytest.mark.django_db(transaction=True)
STEP = timedelta(hours=2)


@pytest.mark.parametrize("wait", ["lease", "circuit", "attempt"])
def test_c82_after_the_clock_went_back_nothing_waits_for_the_old_time(wait):
    """What was set before lies two hours ahead of now."""
    sink = NullSink()
    assert place.take(sink.name, uuid4())  # and then it was killed
    Destination.objects.update(worker_until=F("worker_until") + STEP)
    write(new_id(), "a")
    soon = Now() + STEP + timedelta(seconds=1)
    match wait:
        case "lease":
            Stream.objects.update(lease_token=uuid4(), leased_until=soon)
        case "circuit":
            Destination.objects.update(failures=1, open_until=soon)
        case "attempt":
            Stream.objects.update(next_attempt_at=soon)
    publisher = Publisher(sink)
    publisher.run(1.0)
    publisher.close()
    assert (pending(), Destination.objects.get().turned_away) == (0, 0)


def test_c82_a_small_step_back_takes_the_place_from_nobody():
    holder = uuid4()
    assert place.take("null", holder)
    Destination.objects.update(worker_until=F("worker_until") + timedelta(seconds=3))
    assert not place.take("null", uuid4())
    assert place.renew("null", holder)
