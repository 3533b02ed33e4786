"""The one tree of errors that the kernel raises on purpose.

KernelError                  code for machines, sentence for people, `permanent` for retries
├── Invalid                  the caller's input is wrong; says what and what to do (HTTP 422)
├── NotFound                 absent, or somebody else's: the two are not told apart (404)
├── Conflict                 the state has moved on, or the same key came with other content (409)
├── Forbidden                known, but not allowed (403)
└── Unavailable              a service we need does not answer; trying again later is right (503)
"""

from __future__ import annotations

from typing import Any, ClassVar


class KernelError(Exception):
    """Something production must refuse.

    `code` is stable and meant for machines, the message is a sentence for people, `permanent` says that the same
    request can never succeed, and `details` holds plain values that a door may show.
    """

    code: ClassVar[str] = "kernel_error"
    permanent: ClassVar[bool] = True

    def __init__(self, message: str, *, code: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details
        self.error_code = code or self.code


class Invalid(KernelError):
    """The input is wrong: the message says what, and what would be right."""

    code = "invalid"


class NotFound(KernelError):
    """There is no such thing, or it belongs to another project."""

    code = "not_found"


class Conflict(KernelError):
    """The request does not fit the state as it is now."""

    code = "conflict"


class Forbidden(KernelError):
    """The actor is known and may not do this."""

    code = "forbidden"


class Unavailable(KernelError):
    """A service that we need does not answer. Nothing was changed."""

    code = "unavailable"
    permanent = False
