"""The folder that a command works in: opened without following any symbolic link, looked over before and after.

Never trusts what stands in it: an earlier command may have written every name and link.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from runs.boundary.contracts import NotSent

ENTRIES_MAX = 1_000_000  # looked at before a command; some 3 s
DEPTH_MAX = 64  # two open descriptors each; the deepest real trees (node_modules) have about 40
PROTECTED_MAX = 64  # mounts of one sandbox
LINKED_BYTES_MAX = 2 * 1024**3  # of files with hard links, which are copied
COPY_CHUNK_BYTES = 1024 * 1024
NOTES_MAX = 20  # of one command
OWNER_ALL = 0o700
SET_ASIDE_SUFFIX = ".from-sandbox"


@dataclass(frozen=True)
class Workspace:
    """An open folder. `descriptor` stays valid whatever its path becomes."""

    path: str
    descriptor: int
    owner_uid: int
    owner_gid: int


@dataclass
class Survey:
    """What the look before the command found: protected entries by relative path, and their identities."""

    protected: list[str] = field(default_factory=list)
    identities: set[tuple[int, int]] = field(default_factory=set)
    copied_bytes: int = 0


@dataclass(frozen=True)
class Entry:
    """One name in one open folder."""

    folder: int
    path: str
    item: os.DirEntry[str]

    @property
    def name(self) -> str:
        return self.item.name

    def status(self) -> os.stat_result | None:
        """None when it is gone: another command of the run may work here too."""
        try:
            return self.item.stat(follow_symlinks=False)
        except FileNotFoundError:
            return None


@contextmanager
def opened(path: str, root: str) -> Iterator[Workspace]:
    """The workspace, which must be a real folder strictly below `root`. Raises NotSent for anything else."""
    parts = _relative_parts(path, root)
    real_root = os.path.realpath(root)
    descriptor = _open_folder(real_root, None, path)
    try:
        for part in parts:
            inner = _open_folder(part, descriptor, path)
            os.close(descriptor)
            descriptor = inner
        status = os.fstat(descriptor)
        yield Workspace("/".join((real_root, *parts)), descriptor, status.st_uid, status.st_gid)
    finally:
        os.close(descriptor)


def _relative_parts(path: str, root: str) -> tuple[str, ...]:
    inside, outside = PurePosixPath(path), PurePosixPath(root)
    if not root or not outside.is_absolute() or not inside.is_absolute():
        raise NotSent(f"the workspace {path!r} and its root {root!r} must both be absolute paths")
    if ".." in inside.parts or not inside.is_relative_to(outside) or inside == outside:
        raise NotSent(f"the workspace {path!r} does not lie in {root!r}, where workspaces are kept")
    return inside.relative_to(outside).parts


def _open_folder(name: str, parent: int | None, path: str) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except OSError as error:
        raise NotSent(f"the workspace {path!r} is no plain folder: {error.strerror} at {name!r}") from error


def survey(workspace: Workspace, protected_names: tuple[str, ...]) -> Survey:
    """Find protected entries, and give hard-linked files an inode of their own.

    A hard link shares its inode with a file outside (a local `git clone` makes thousands): writing to it from the
    sandbox would change that file. Protected entries are mounted read-only and need no copy.
    """
    found = Survey()
    for count, entry in enumerate(_entries(workspace, protected_names), start=1):
        if count > ENTRIES_MAX:
            raise NotSent(f"the workspace holds more than {ENTRIES_MAX} files: too many to look over")
        if entry.name in protected_names:
            _note_protected(entry, found)
        elif entry.item.is_file(follow_symlinks=False):
            _separate(entry, found)
    return found


def _note_protected(entry: Entry, found: Survey) -> None:
    if entry.item.is_symlink():
        raise NotSent(f"{entry.path!r} in the workspace is a symbolic link, and must not be: remove it")
    if len(found.protected) >= PROTECTED_MAX:
        raise NotSent(f"the workspace holds more than {PROTECTED_MAX} entries named {entry.name!r}")
    if status := entry.status():
        found.protected.append(entry.path)
        found.identities.add((status.st_dev, status.st_ino))


def _entries(workspace: Workspace, not_entered: tuple[str, ...]) -> Iterator[Entry]:
    """Everything below the workspace. A folder nested too deep is moved to the top, so that nothing hides below it."""
    waiting = [""]
    while waiting:
        start = waiting.pop()
        folder = _enter(workspace.descriptor, start or ".")
        if folder is None:
            continue
        try:
            for entry in _walk(folder, start and start + "/", not_entered, DEPTH_MAX):
                if isinstance(entry, TooDeep):
                    waiting.append(_moved_to_top(entry, workspace))
                else:
                    yield entry
        finally:
            os.close(folder)


class TooDeep(Entry):
    """A folder at the depth where the walk does not go on."""


def _moved_to_top(entry: Entry, workspace: Workspace) -> str:
    name = f"nested-too-deep-{secrets.token_hex(4)}"
    _rename(entry.folder, entry.name, workspace.descriptor, name)
    return name


def _walk(folder: int, path: str, not_entered: tuple[str, ...], depth: int) -> Iterator[Entry]:
    with os.scandir(folder) as listing:
        for item in listing:
            entry = Entry(folder, path + item.name, item)
            yield entry
            if not item.is_dir(follow_symlinks=False) or item.name in not_entered:
                continue
            if depth == 0:
                yield TooDeep(folder, entry.path, item)
            elif (inner := _enter(folder, item.name)) is not None:
                try:
                    yield from _walk(inner, entry.path + "/", not_entered, depth - 1)
                finally:
                    os.close(inner)


def _enter(parent: int, name: str) -> int | None:
    """None when it is no folder any more. One that the command closed to us, as its owner, is opened again."""
    flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, os.O_RDONLY | flags, dir_fd=parent)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        closed = os.open(name, os.O_PATH | flags, dir_fd=parent)
        try:
            Path(f"/proc/self/fd/{closed}").chmod(OWNER_ALL)
        finally:
            os.close(closed)
        return os.open(name, os.O_RDONLY | flags, dir_fd=parent)


def _rename(folder: int, name: str, target: int, new_name: str) -> None:
    try:
        os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=target)
    except PermissionError:  # the command took the right to write from a folder that it shares with us
        for descriptor in (folder, target):
            os.fchmod(descriptor, OWNER_ALL)
        if (moved := _enter(folder, name)) is not None:
            os.fchmod(moved, OWNER_ALL)
            os.close(moved)
        os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=target)


def _separate(entry: Entry, found: Survey) -> None:
    """Replace a hard link by a copy with the same mode, owner and times."""
    status = entry.status()
    if status is None or status.st_nlink < 2:
        return
    found.copied_bytes += status.st_size
    if found.copied_bytes > LINKED_BYTES_MAX:
        raise NotSent(f"the workspace holds more than {LINKED_BYTES_MAX} bytes in hard links: make it of real copies")
    try:
        source = os.open(entry.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=entry.folder)
    except OSError:  # gone, or no longer a file
        return
    draft = f".agent-kernel-copy-{secrets.token_hex(8)}"
    target = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=entry.folder)
    try:
        _copy(source, target, os.fstat(source))
        os.rename(draft, entry.name, src_dir_fd=entry.folder, dst_dir_fd=entry.folder)
    except BaseException:
        os.unlink(draft, dir_fd=entry.folder)
        raise
    finally:
        os.close(source)
        os.close(target)


def _copy(source: int, target: int, status: os.stat_result) -> None:
    while os.sendfile(target, source, None, COPY_CHUNK_BYTES):
        pass
    if os.geteuid() == 0:
        os.fchown(target, status.st_uid, status.st_gid)
    os.fchmod(target, stat.S_IMODE(status.st_mode) & 0o777)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def set_aside(workspace: Workspace, protected_names: tuple[str, ...], before: Survey) -> tuple[str, ...]:
    """Rename protected entries that the command made, so that no program outside acts on them. Returns notes.

    Goes through all of it, however much the command has made: what it took to make takes longer than to look at.
    """
    notes = []
    try:
        if os.geteuid() == workspace.owner_uid:
            os.fchmod(workspace.descriptor, stat.S_IMODE(os.fstat(workspace.descriptor).st_mode) | OWNER_ALL)
        for entry in _entries(workspace, protected_names):
            if entry.name in protected_names and (new_name := _renamed(entry, before)):
                notes.append(f"{entry.path} was made by the command and is now {new_name}")
    except (NotSent, OSError) as error:
        notes.append(f"the workspace could not be looked over after the command: {error}")
    return tuple(notes[:NOTES_MAX])


def _renamed(entry: Entry, before: Survey) -> str:
    status = entry.status()
    if status is None or (status.st_dev, status.st_ino) in before.identities:
        return ""
    new_name = f"{entry.name}{SET_ASIDE_SUFFIX}-{secrets.token_hex(4)}"
    try:
        _rename(entry.folder, entry.name, entry.folder, new_name)
    except FileNotFoundError:
        return ""
    return new_name


def free_bytes(workspace: Workspace) -> int:
    status = os.fstatvfs(workspace.descriptor)
    return status.f_bavail * status.f_frsize
