"""Keeps the live projection up to date in a thread of the server's process. Losing it loses time, never an event.

Several processes may run it on one store: the row lock of the generation lets one of them work at a time.
"""

from __future__ import annotations

import logging
import threading
import time

import psycopg

from temporality.projection import projector

logger = logging.getLogger(__name__)

IDLE_SECONDS = 1.0  # between looks when nobody nudges: for events that another process stored
PAUSE_SECONDS = 0.05  # after each step at least, so that single events are taken together; and at least as long as the
# step took: a burst may make the projection late, which shows, but never ingest
FAILURE_SECONDS = 2.0  # after an error, before the next attempt
CONNECT_SECONDS = 3
STOP_SECONDS = 10.0  # for the step in hand to end
STATEMENT_SECONDS = 60
HALVINGS_MAX = projector.BATCH_EVENTS.bit_length()  # then a step is one event


class Pace:
    """How much one step takes: half after a timeout, so that it gets through in the end; double when it went well."""

    def __init__(self) -> None:
        self._halvings = 0

    def step(self, connection: projector.Connection, generation: int) -> projector.Step:
        """One step of this size. Raises QueryCanceled if it took too long; the next one is smaller."""
        events_max = max(1, projector.BATCH_EVENTS >> self._halvings)
        bytes_max = max(1, projector.STEP_BYTES >> self._halvings)
        try:
            step = projector.advance(connection, generation, events_max=events_max, bytes_max=bytes_max)
        except psycopg.errors.QueryCanceled:
            self._halvings = min(self._halvings + 1, HALVINGS_MAX)
            raise
        self._halvings = max(self._halvings - 1, 0)
        return step


class ProjectorThread:
    """One thread, one connection of its own."""

    def __init__(self, database_url: str) -> None:
        self.database_url = database_url
        self._pace = Pace()
        self._stored = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="projector", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Something was stored."""
        self._stored.set()

    def stop(self) -> None:
        self._stopping.set()
        self._stored.set()
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with self._connect() as connection:
                    self._follow(connection)
            except psycopg.OperationalError as error:
                logger.warning("the projection waits for the database: %s", type(error).__name__)
            except Exception:
                logger.exception("the projection failed and starts again")
            self._stopping.wait(FAILURE_SECONDS)

    def _connect(self) -> projector.Connection:
        options = f"-c statement_timeout={STATEMENT_SECONDS}s -c timezone=UTC"
        return psycopg.connect(
            self.database_url,
            autocommit=True,
            connect_timeout=CONNECT_SECONDS,
            prepare_threshold=None,
            options=options,
            application_name="temporality projector",
        )

    def _follow(self, connection: projector.Connection) -> None:
        while not self._stopping.is_set():
            self._stored.clear()
            started = time.monotonic()
            step = self._pace.step(connection, projector.live_generation(connection))
            took = time.monotonic() - started
            if not step.more:
                self._stored.wait(IDLE_SECONDS)
            self._stopping.wait(max(PAUSE_SECONDS, took))
