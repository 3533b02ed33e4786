"""Another program may take parts of a running stack away, and all comes back when it has gone, however it went."""

from __future__ import annotations

import sys
import threading

import pytest

from kernel_project.devstack.control import Control, ControlledStack
from kernel_project.devstack.errors import DevstackError
from kernel_project.devstack.ports import private_layout
from kernel_project.devstack.process import Server
from kernel_project.devstack.stack import Stack
from kernel_project.devstack.supervisor import mind
from tests.waiting import until_sync as until


class Sleeper(Server):
    """A process that is there, and shows the environment that it was started with."""

    name = "worker"

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack.layout)
        self.stack, self.seen = stack, []

    def command(self):
        self.seen.append(self.stack.extra_environment.get("KERNEL_FAULTS"))
        return [sys.executable, "-S", "-c", "import time; time.sleep(600)"]

    def is_ready(self):
        return True


@pytest.fixture
def running(tmp_path):
    stack, stopping = Stack(private_layout(tmp_path), services=()), threading.Event()
    stack.services["worker"] = sleeper = Sleeper(stack)
    sleeper.start()
    minders = mind(stack.services, stopping, lambda *_: None)
    control = Control(stack, minders, stopping)
    control.start()
    yield sleeper
    stopping.set()
    for thread in (control, *minders):
        thread.join(20)
    sleeper.kill()


def test_what_is_killed_stays_dead_while_it_is_controlled_and_comes_back_afterwards(running):
    stack = ControlledStack(running.layout.var)
    assert (stack.services, stack.alive("worker")) == (["worker"], True)
    stack.set_variable("KERNEL_FAULTS", "here")
    stack.restart("worker")
    stack.kill("worker")
    assert not stack.alive("worker")
    assert stack.environment()["KERNEL_FAULTS"] == "here"
    stack.close()
    until(running.alive, seconds=20)
    assert running.seen == [None, "here", None]


def test_a_controller_that_goes_without_a_word_leaves_no_environment_behind(running):
    stack = ControlledStack(running.layout.var)
    stack.set_variable("KERNEL_FAULTS", "here")
    stack.restart("worker")
    stack._socket.close()  # as a killed program would
    until(lambda: running.seen[2:] == [None] and running.alive(), seconds=20)


def test_what_cannot_be_done_is_an_error_that_says_why(running):
    stack = ControlledStack(running.layout.var)
    with pytest.raises(DevstackError, match="this stack has no postgres"):
        stack.stop("postgres")
    stack.close()


def test_without_a_running_stack_there_is_nothing_to_control(tmp_path):
    with pytest.raises(DevstackError, match=r"no `manage\.py up` runs"):
        ControlledStack(tmp_path)
