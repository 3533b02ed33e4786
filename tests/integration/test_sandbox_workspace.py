"""The workspace: who owns what, what an earlier command may have left there, and what programs outside may rely on."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from runs.boundary.contracts import NotSent
from runs.boundary.sandbox import run
from tests.sandbox_commands import marker, nothing_at, processes_with, shell, workspace_in

GIT = ("git", "-c", "user.name=kernel", "-c", "user.email=kernel@example.com")


def _git(folder: Path, *arguments: str) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    answer = subprocess.run([*GIT, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return answer.stdout


def _repository(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    _git(folder, "init", "--quiet")
    (folder / "readme").write_text("one\n")
    _git(folder, "add", "readme")
    _git(folder, "commit", "--quiet", "-m", "first")
    return folder


async def test_files_of_the_command_belong_to_the_kernels_user(tmp_path: Path) -> None:
    workspace = workspace_in(tmp_path)
    (workspace / "given").write_text("given\n")
    result = await run(
        shell("cat given; echo more >> given; mkdir d; echo x > d/made; stat -c %u given d/made", tmp_path)
    )
    assert result.stdout == b"given\n1000\n1000\n"
    owners = {
        path.stat().st_uid for path in (workspace, workspace / "given", workspace / "d", workspace / "d" / "made")
    }
    assert owners == {os.geteuid()}
    (workspace / "d" / "made").write_text("the kernel can write it\n")


async def test_the_command_is_nobody_outside(tmp_path: Path) -> None:
    """As root we lend a uid of the pool; otherwise the command has our own, in a user namespace without rights."""
    word = marker()
    task = asyncio.create_task(run(shell(f"touch begun; sleep 60; : {word}", tmp_path)))
    while not (tmp_path / "workspace" / "begun").exists():
        await asyncio.sleep(0.01)
    uids = {Path(f"/proc/{pid}").stat().st_uid for pid in processes_with(word)}
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert uids
    assert 0 not in uids


@pytest.mark.parametrize("kept_in", ["elsewhere", "", "relative", "root/../elsewhere", "root"])
async def test_a_workspace_outside_its_root_is_refused(kept_in: str, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "elsewhere").mkdir()
    path = kept_in if kept_in in ("", "relative") else str(tmp_path / kept_in)
    with pytest.raises(NotSent, match=r"does not lie in|must both be absolute"):
        await run(nothing_at(path, tmp_path / "root"))


async def test_a_workspace_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "workspace").symlink_to(tmp_path / "target")
    with pytest.raises(NotSent, match="is no plain folder"):
        await run(nothing_at(str(tmp_path / "workspace"), tmp_path))


async def test_a_workspace_below_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "workspace").mkdir(parents=True)
    root = tmp_path / "root"
    root.mkdir()
    (root / "project").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotSent, match="is no plain folder"):
        await run(nothing_at(str(root / "project" / "workspace"), root))


async def test_a_workspace_that_is_missing_or_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("file", "missing"):
        with pytest.raises(NotSent, match="is no plain folder"):
            await run(nothing_at(str(tmp_path / name), tmp_path))


async def test_links_in_the_workspace_lead_nowhere_outside(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("canary")
    workspace = workspace_in(tmp_path)
    (workspace / "absolute").symlink_to(secret)
    (workspace / "upwards").symlink_to("../secret")
    (workspace / "folder").symlink_to(tmp_path)
    script = "cat absolute upwards folder/secret; echo x > absolute; echo x > upwards; ls -d folder/*"
    result = await run(shell(script, tmp_path))
    assert result.stdout == b""
    assert secret.read_text() == "canary"


async def test_a_hard_link_is_separated_from_the_file_outside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("theirs\n")
    workspace = workspace_in(tmp_path)
    (workspace / "inside").hardlink_to(outside)
    result = await run(shell("cat inside; echo mine > inside; chmod 777 inside", tmp_path))
    assert result.stdout == b"theirs\n"
    assert (workspace / "inside").read_text() == "mine\n"
    assert outside.read_text() == "theirs\n"
    assert outside.stat().st_mode & 0o777 != 0o777


async def test_a_local_clone_shares_nothing_with_its_source(tmp_path: Path) -> None:
    source = _repository(tmp_path / "source")
    workspace = tmp_path / "workspace"
    _git(tmp_path, "clone", "--quiet", "--local", str(source), str(workspace))
    await run(
        shell(
            "find .git/objects -type f | while read f; do chmod u+w $f; echo x > $f; done", tmp_path, protected_names=()
        )
    )
    assert _git(source, "fsck", "--strict") == ""


async def test_git_reads_and_commits_on_both_sides(tmp_path: Path) -> None:
    """The command reads the repository; a program outside, as the kernel's user, commits what the command wrote."""
    workspace = _repository(tmp_path / "workspace")
    result = await run(
        shell("git log --format=%s && git status --short && git rev-list --count HEAD && echo two > report", tmp_path)
    )
    assert result.stdout == b"first\n1\n", result.stderr
    _git(workspace, "add", "report")
    _git(workspace, "commit", "--quiet", "-m", "second")
    again = await run(shell("git log --format=%s", tmp_path))
    assert again.stdout == b"second\nfirst\n"


async def test_a_program_outside_works_in_the_workspace_while_a_command_runs(tmp_path: Path) -> None:
    workspace = _repository(tmp_path / "workspace")
    task = asyncio.create_task(
        run(shell("touch begun; while [ ! -e go ]; do sleep 0.02; done; git log --format=%s", tmp_path))
    )
    while not (workspace / "begun").exists():
        await asyncio.sleep(0.01)
    await asyncio.to_thread(_git, workspace, "commit", "--quiet", "--allow-empty", "-m", "meanwhile")
    (workspace / "go").touch()
    assert (await task).stdout == b"meanwhile\nfirst\n"


async def test_hooks_and_settings_of_a_repository_cannot_be_planted(tmp_path: Path) -> None:
    """A hook would be executed by the next program outside that commits."""
    workspace = _repository(tmp_path / "workspace")
    before = (workspace / ".git" / "config").read_text()
    attempts = [
        "echo 'touch /tmp/owned' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit",
        "git config core.fsmonitor 'touch /tmp/owned'",
        "rm -rf .git; mv .git away; rmdir .git; ln -sf /tmp .git",
    ]
    for attempt in attempts:
        await run(shell(attempt, tmp_path))
    assert not (workspace / ".git" / "hooks" / "pre-commit").exists()
    assert (workspace / ".git" / "config").read_text() == before
    assert _git(workspace, "log", "--format=%s") == "first\n"


async def test_a_repository_that_the_command_makes_is_set_aside(tmp_path: Path) -> None:
    workspace = workspace_in(tmp_path)
    result = await run(shell("git init --quiet && mkdir -p a/b && cp -r .git a/b/.git && ln -s /tmp a/.git", tmp_path))
    assert result.exit_code == 0
    assert len(result.notes) == 3
    assert list(workspace.rglob(".git")) == []
    assert len(list(workspace.rglob(".git.from-sandbox-*"))) == 3


async def test_a_repository_cannot_be_hidden_deep_down(tmp_path: Path) -> None:
    script = "d=; for i in $(seq 300); do mkdir n && cd n; done; mkdir .git; cd /workspace; mkdir z; mkdir z/.git"
    result = await run(shell(script, tmp_path))
    assert result.exit_code == 0
    assert len(result.notes) == 2
    assert list((tmp_path / "workspace").rglob(".git")) == []
    assert (await run(shell("true", tmp_path))).exit_code == 0


async def test_a_repository_moved_by_the_command_stays_what_it_is(tmp_path: Path) -> None:
    workspace = workspace_in(tmp_path)
    _repository(workspace / "old")
    result = await run(shell("mv old new && echo > new/.git/hooks/pre-commit", tmp_path))
    assert result.notes == ()
    assert _git(workspace / "new", "log", "--format=%s") == "first\n"
    assert not (workspace / "new" / ".git" / "hooks" / "pre-commit").exists()


async def test_a_protected_name_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (workspace_in(tmp_path) / ".git").symlink_to("/etc")
    with pytest.raises(NotSent, match="is a symbolic link"):
        await run(shell("true", tmp_path))


async def test_a_tool_may_be_allowed_to_commit_inside(tmp_path: Path) -> None:
    workspace = _repository(tmp_path / "workspace")
    script = "echo x > f && git add f && git -c user.name=a -c user.email=a@b commit -qm inside"
    result = await run(shell(script, tmp_path, protected_names=()))
    assert result.exit_code == 0, result.stderr
    assert _git(workspace, "log", "-1", "--format=%s") == "inside\n"


async def test_fifos_and_strange_names_do_not_stop_anything(tmp_path: Path) -> None:
    script = "mkfifo pipe; touch \"$(printf 'a\\nb')\" \"$(printf '\\377')\" -- '-rf'; mkdir closed; chmod 000 closed"
    result = await run(shell(script, tmp_path))
    assert result.exit_code == 0
    again = await run(shell("ls | wc -l", tmp_path))
    assert again.stdout == b"6\n"  # one name takes two lines


async def test_closed_folders_hide_nothing_and_stop_nothing(tmp_path: Path) -> None:
    """A kernel that is not root is held up by modes like anybody else, if it does not look out."""
    workspace = workspace_in(tmp_path)
    script = "mkdir -p a b/.git c/.git; chmod 000 a; chmod 555 b; chmod 311 c; chmod 000 ."
    result = await run(shell(script, tmp_path))
    assert len(result.notes) == 2
    assert list(workspace.rglob(".git")) == []
    assert (await run(shell("echo x > made", tmp_path))).exit_code == 0
