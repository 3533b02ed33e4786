"""What `bench api` looks at besides answers: which process listens, how many threads it has, and the whole stack."""

from __future__ import annotations

import os
import socket
import threading

from kernel_project.bench import ALL
from kernel_project.devstack import stack
from runs.bench_followers import threads, web_process


def test_the_whole_stack_is_the_stack_s_own_word_for_it():
    assert ALL == stack.ALL


def test_the_process_that_listens_is_found_and_its_threads_are_counted():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        found = web_process(listening.getsockname()[1])
    assert found == os.getpid()
    assert threads(found) >= threading.active_count()


def test_where_nobody_listens_nothing_is_said():
    assert threads(None) == 0
