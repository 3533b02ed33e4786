"""The names of the fault points, in the order in which an operation passes them. Imports nothing of ours."""

from __future__ import annotations

from typing import Literal

Point = Literal[
    "after_intent",  # the intent is committed, the adapter has not been called
    "before_sending_mark",  # this and the next: writes without a living key only
    "after_sending_mark",
    "before_send",  # the first byte leaves next
    "after_effect",  # the adapter has its answer, nothing of it is written
    "before_settle",  # the outcome is known, its transaction has not begun; passed again when the settle is tried again
    "after_settle",  # the outcome is committed, the engine does not know
]
Action = Literal["kill", "raise", "hang", "cut"]  # cut: the server ends this process's database connections
