"""Which browser the tests use, and how it is started. Imports nothing of ours, so that scripts may use it too."""

from __future__ import annotations

from pathlib import Path

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
PATIENCE_MILLISECONDS = 30_000  # the machine is shared; nothing here waits longer than it must
SCREENSHOTS = Path(__file__).resolve().parent.parent / "var" / "screenshots"
