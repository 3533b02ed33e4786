"""The web process as it runs in production, uvicorn and all, on a port of its own inside the test."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import uvicorn

from kernel_project.asgi import application
from tests.waiting import until_sync

STOP_SECONDS = 10


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """The address of a server that is up, and gone afterwards."""
    config = uvicorn.Config(application, port=0, log_level="warning", lifespan="off", timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        until_sync(lambda: server.started)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(STOP_SECONDS)
