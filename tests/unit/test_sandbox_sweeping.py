"""Who counts as alive, and which scratch folders are taken away: only what certainly belongs to nobody any more."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from runs.boundary.sandbox import cgroups, sweeping
from runs.boundary.sandbox.capabilities import TRIAL_FOLDER_PREFIX

OLD = time.time() - 2 * sweeping.FOLDER_AGE_SECONDS_MIN


def test_this_process_is_alive() -> None:
    assert cgroups.is_alive(cgroups.worker_identity(os.getpid()))


def test_one_that_is_dead_is_not_even_while_nobody_has_reaped_it() -> None:
    process = subprocess.Popen(["sleep", "60"])
    identity = cgroups.worker_identity(process.pid)
    assert cgroups.is_alive(identity)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not cgroups.is_alive(identity)
    process.wait()
    assert not cgroups.is_alive(identity)


def test_another_process_with_the_same_pid_is_not_taken_for_it() -> None:
    pid, started, namespace = cgroups.worker_identity(os.getpid()).split(".")
    assert not cgroups.is_alive(f"{pid}.{int(started) + 1}.{namespace}")


def test_one_of_another_pid_namespace_cannot_be_judged() -> None:
    assert cgroups.is_alive("999999.1.1")


def test_only_old_folders_of_trials_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    old, young, other = (tmp_path / name for name in (f"{TRIAL_FOLDER_PREFIX}a", f"{TRIAL_FOLDER_PREFIX}b", "else"))
    for folder in (old, young, other):
        (folder / "inside").mkdir(parents=True)
    for folder in (old, other):
        os.utime(folder, (OLD, OLD))
    assert sweeping.sweep_folders() == [old]
    assert (young.exists(), other.exists()) == (True, True)


def test_a_link_that_has_such_a_name_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "scratch"))
    kept, place = tmp_path / "kept", tmp_path / "scratch"
    kept.mkdir()
    place.mkdir()
    link = place / f"{TRIAL_FOLDER_PREFIX}a"
    link.symlink_to(kept)
    os.utime(link, (OLD, OLD), follow_symlinks=False)
    sweeping.sweep_folders()
    assert kept.exists()
