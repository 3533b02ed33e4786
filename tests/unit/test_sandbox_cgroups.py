"""Which cgroup files are written for each version, on folders that look like theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from runs.boundary.sandbox import SandboxLimits, cgroups

LIMITS = SandboxLimits(memory_bytes=1000, processes_max=10, cpu_cores=1.5)


def _files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


def test_version_2_has_all_limits_in_one_folder(tmp_path: Path) -> None:
    group = cgroups.Cgroup.create(cgroups.Hierarchy("v2", {"all": tmp_path}, (tmp_path,)), "operation", LIMITS)
    assert _files(group.folders["all"]) == {
        "memory.max": "1000",
        "memory.swap.max": "0",
        "pids.max": str(10 + cgroups.SANDBOX_PROCESSES),
        "cpu.max": "150000 100000",
    }


def test_version_1_has_one_folder_per_controller(tmp_path: Path) -> None:
    parents = {name: tmp_path / name for name in cgroups.V1_CONTROLLERS}
    for parent in parents.values():
        parent.mkdir()
    group = cgroups.Cgroup.create(cgroups.Hierarchy("v1", parents, (tmp_path,)), "operation", LIMITS)
    assert _files(group.folders["memory"])["memory.limit_in_bytes"] == "1000"
    assert _files(group.folders["pids"]) == {"pids.max": str(10 + cgroups.SANDBOX_PROCESSES)}
    assert _files(group.folders["cpu"]) == {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000"}


@pytest.mark.parametrize(
    ("mode", "file", "killed", "quiet"),
    [
        ("v2", "memory.events", "low 0\noom 1\noom_kill 2\n", "low 0\noom 1\noom_kill 0\n"),
        ("v1", "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", "under_oom 0\noom_kill 0\n"),
    ],
)
def test_a_kill_for_memory_is_read_from_the_right_line(
    mode: str, file: str, killed: str, quiet: str, tmp_path: Path
) -> None:
    group = cgroups.Cgroup("v2" if mode == "v2" else "v1", {"all" if mode == "v2" else "memory": tmp_path})
    (tmp_path / file).write_text(killed)
    assert group.out_of_memory()
    (tmp_path / file).write_text(quiet)
    assert not group.out_of_memory()


def test_version_2_makes_the_sandbox_a_sibling_of_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = tmp_path / "kernel.service"
    worker = unit / "worker"
    worker.mkdir(parents=True)
    (unit / "cgroup.subtree_control").write_text("memory pids cpu")
    (unit / "cgroup.procs").write_text("")
    mount = cgroups.Mount(tmp_path, "/", "cgroup2", frozenset())
    monkeypatch.setattr(cgroups, "_mounts", lambda: [mount])
    monkeypatch.setattr(cgroups, "_own_paths", lambda: {"": "/kernel.service/worker"})
    monkeypatch.setattr(cgroups, "_hands_on", lambda parent: parent == unit)
    found = cgroups.hierarchy.__wrapped__()
    assert (found.mode, dict(found.parents)) == ("v2", {"all": unit})


def test_nothing_writable_is_no_cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_mounts", list)
    assert cgroups.hierarchy.__wrapped__().mode == "none"


def test_a_mount_point_with_a_root_of_its_own_is_understood(tmp_path: Path) -> None:
    """In a container /sys/fs/cgroup shows only the container's part of the tree."""
    (tmp_path / "inner").mkdir()
    mount = cgroups.Mount(tmp_path, "/docker/abc", "cgroup2", frozenset())
    assert cgroups._below(mount, "/docker/abc/inner") == tmp_path / "inner"
    assert cgroups._below(mount, "/docker/abc") == tmp_path
    assert cgroups._below(mount, "/elsewhere") == tmp_path
