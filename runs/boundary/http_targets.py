"""Which addresses an HTTP tool may be connected to: public ones, and those of hosts that its declaration names."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_project.primitives import addresses
from kernel_project.primitives.addresses import AddressForbidden, NoAddress, Target
from runs.boundary.contracts import NotSent


class TargetForbidden(NotSent):
    """The address is one that this tool may not be connected to."""


async def checked_target(scheme: str, host: str, port: int, private_hosts: Sequence[str]) -> Target:
    """Resolve and check. Raises NotSent for a name without address, TargetForbidden if one of them is not allowed."""
    try:
        return await addresses.checked_target(scheme, host, port, private_hosts)
    except AddressForbidden as error:
        raise TargetForbidden(f"{error}: name the host in `private_hosts` to allow it") from None
    except NoAddress as error:
        raise NotSent(str(error)) from None
