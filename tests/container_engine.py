"""Container engines of this machine for the tests of the docker driver, with an image made here, of busybox alone.

Nothing is pulled. Where no engine works the tests that need one are skipped, with the reason: they show nothing then.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from runs.boundary.sandbox import engine
from runs.boundary.sandbox.docker import Docker

IMAGE = "agent-kernel-test:1"
BUSYBOX = "/bin/busybox"  # Debian's busybox-static
APPLETS = (
    "sh",
    "cat",
    "dd",
    "env",
    "head",
    "id",
    "ls",
    "mkdir",
    "setsid",
    "sleep",
    "tail",
    "touch",
    "true",
    "wget",
    "yes",
)
FOLDERS = ("bin", "dev", "etc", "proc", "sys", "tmp", "workspace")
SECONDS_MAX = 60
# What podman needs where there is no systemd, and cgroups of both versions.
CONFIGURATION = '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\nruntime = "runc"\n'


def driver(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Docker:
    """A driver that can run commands here. Skips the test when it cannot."""
    if not engine.found(program):
        pytest.skip(f"not covered on this machine: {program} is not installed")
    if not Path(BUSYBOX).exists():
        pytest.skip("not covered on this machine: busybox-static is not installed, so no image can be made")
    if program == "podman" and shutil.which("runc"):
        (folder / "containers.conf").write_text(CONFIGURATION)
        monkeypatch.setenv("CONTAINERS_CONF", str(folder / "containers.conf"))
    made = _import(program)
    if made.returncode != 0:
        pytest.skip(f"not covered on this machine: {program} does not work ({made.stderr.decode().strip()[-200:]})")
    found = Docker(program, IMAGE, folder / "trials")
    if found.capabilities().unavailable:
        pytest.skip(f"not covered on this machine: {program}: {found.capabilities().unavailable}")
    return found


def _import(program: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [program, "import", "-", IMAGE],
        input=_root(),
        capture_output=True,
        timeout=SECONDS_MAX,
        env=engine.environment(),
    )


def _root() -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name in FOLDERS:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
        archive.add(BUSYBOX, "bin/busybox")
        for name in APPLETS:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
    return content.getvalue()
