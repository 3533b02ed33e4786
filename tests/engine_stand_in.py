"""A stand-in for a container engine's command line, with the answers of Docker 20.10 and podman 4.3 as recorded."""

from __future__ import annotations

import stat
from pathlib import Path

from runs.boundary.sandbox import container

RUNNING = '"Status": "running", "Running": true, "Pid": 7, "ExitCode": 0, "Error": "", "OOMKilled": false'
EXITED = '"Status": "exited", "Running": false, "Pid": 0, "ExitCode": 3, "Error": "", "OOMKilled": false'
CREATED = '"Status": "created", "Running": false, "Pid": 0, "ExitCode": 127, "Error": "exec: no", "OOMKilled": false'
BEGAN = '"StartedAt": "2026-11-30T20:14:34.052960755Z"'
ENDED = '"FinishedAt": "2026-11-30T20:14:35.5Z"'
NEVER_BEGAN, NEVER_ENDED = '"StartedAt": "0001-01-01T00:00:00Z"', '"FinishedAt": "0001-01-01T00:00:00Z"'
ENGINE = """#!/bin/sh
printf '%s\\n' "$@" >> {folder}/said; echo -- >> {folder}/said
for argument in "$@"; do case $argument in /dev/fd/*) cat $argument > {folder}/environment;; esac; done
env > {folder}/environment-of-engine
[ -e {folder}/$1 ] || exit 0
. {folder}/$1
"""


class StandIn:
    """An engine's command line: answers each word with what was laid down for it, and keeps what it was told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = str(folder / "engine")
        Path(self.program).write_text(ENGINE.format(folder=folder))
        Path(self.program).chmod(stat.S_IRWXU)

    def answers(self, word: str, text: str = "", code: int = 0, error: str = "") -> None:
        body = f"cat <<'END'\n{text}\nEND\n" if text else ""
        body += f"echo '{error}' >&2\n" if error else ""
        (self.folder / word).write_text(f"{body}exit {code}\n")

    def inspects(self, *state: str, attempt: int = 1) -> None:
        labels = f'{{"{container.ATTEMPT_LABEL}": "{attempt}"}}'
        self.answers("inspect", f'{{"state": {{{", ".join(state)}}}, "labels": {labels}}}')

    def calls(self) -> list[list[str]]:
        return [call.splitlines() for call in (self.folder / "said").read_text().split("--\n") if call]
