"""A row of the drill that breaks off is reported as broken, what it took away comes back, and the others go on."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from django.core.management import CommandError, call_command

from kernel_project.drill import outages, rows
from kernel_project.drill.rows import Row
from kernel_project.drill.scene import ALL, Scene


class Able:
    unavailable = ""


class Stage:
    """A stack that only remembers what runs."""

    def __init__(self, services=ALL):
        self.services, self.dead, self.variables = list(services), set(), {}

    def stop(self, name):
        self.dead.add(name)

    kill = stop

    def start(self, name):
        self.dead.discard(name)

    restart = start

    def alive(self, name):
        return name not in self.dead

    def set_variable(self, name, value):
        self.variables[name] = value


@pytest.fixture
def scene():
    made = Scene.__new__(Scene)
    made.stack, made._is_armed = Stage(), False
    return made


def test_an_unexpected_error_is_a_broken_row_with_its_reason_and_the_next_row_plays(scene):
    def breaks(scene):
        scene.stack.stop("postgres")
        scene.stack.kill("worker")
        yield "as asked", True
        raise KeyError("state")

    told = [rows.observe(Row("F0", "hold", act), scene) for act in (breaks, lambda _: iter([("fine", True)]))]
    assert [one.held for one in told] == [False, True]
    assert told[0].seen == ["as asked", "BROKEN OFF: KeyError: 'state'"]
    assert scene.stack.dead == set()


def test_an_armed_worker_is_replaced_when_its_row_has_ended(scene):
    def arms(scene):
        scene.armed_worker("after_effect:pay=kill")
        raise StopAsyncIteration
        yield

    assert not rows.observe(Row("F0", "hold", arms), scene).held
    assert scene.stack.variables == {"KERNEL_FAULTS": None}


def test_what_cannot_be_mended_breaks_its_row_only(scene, monkeypatch):
    monkeypatch.setattr(scene, "mend", lambda: 1 / 0)
    told = rows.observe(Row("F0", "hold", lambda _: iter([("fine", True)])), scene)
    assert (told.held, told.seen) == (False, ["fine", "NOT MENDED: ZeroDivisionError: division by zero"])


@pytest.mark.parametrize(
    ("act", "server"), [(outages.f5, "temporal"), (outages.f6, "postgres"), (outages.f9, "temporality")]
)
def test_a_row_starts_what_it_stopped_when_it_breaks_off_meanwhile(scene, act, server):
    class Client:
        def items(self, *_):
            return []

        def until(self, *_):
            return True

        def refusal(self, *_):
            assert scene.stack.dead == {server}
            raise TimeoutError

    scene.client, scene.start = Client(), lambda *_: "run"
    scene.booked = scene.end = Client().refusal
    monkey = pytest.MonkeyPatch()
    monkey.setattr(outages, "pause", lambda _: None)
    with pytest.raises(TimeoutError):
        list(act(scene))
    monkey.undo()
    assert scene.stack.dead == set()


def test_a_row_that_needs_what_the_stack_did_not_start_is_not_run_and_says_why(monkeypatch):
    monkeypatch.setattr("runs.boundary.sandbox.drivers.chosen", lambda: SimpleNamespace(capabilities=Able))
    without = Stage(name for name in ALL if name != "postgres")
    by_name = {row.name: rows.missing(row, without) for row in rows.ROWS}
    assert {name for name, why in by_name.items() if why} == {"F6", "F7"}
    assert "postgres" in by_name["F6"]


def test_without_a_running_stack_each_row_is_not_run_and_the_command_fails(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("KERNEL_VAR", str(tmp_path))
    with pytest.raises(CommandError, match="F1 not run, F12 not run"):
        call_command("drill", "F1", "F12", "--running", "--json")
    told = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["held"], "manage.py up" in row["not_run"]) for row in told] == [(False, True), (False, True)]


def test_the_sandbox_row_is_not_run_on_a_machine_without_one(monkeypatch):
    from runs.boundary.sandbox import drivers

    class Driver:
        def capabilities(self):
            return SimpleNamespace(unavailable="bubblewrap is not installed")

    monkeypatch.setattr(drivers, "chosen", Driver)
    by_name = {row.name: rows.missing(row, Stage()) for row in rows.ROWS}
    assert {name for name, why in by_name.items() if why} == {"F3"}
    assert "bubblewrap is not installed" in by_name["F3"]
