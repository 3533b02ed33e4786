"""Messages as signed HTTP requests, in the manner of standardwebhooks.com. An answer is read as far as its status."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import hmac
import os
import time
from urllib.parse import urlsplit

import httpx2
from django.conf import settings

from approvals.messages import Message, NotDelivered
from kernel_project.primitives.addresses import AddressForbidden, NoAddress, Target, checked_target

SECONDS_MAX = 10.0  # for all of one request, however slowly the other side talks
CONNECT_SECONDS = 2.0  # to an address after which there is another one to try
PORTS = {"http": 80, "https": 443}
SECRET_PREFIX = "whsec_"  # noqa: S105  marks a secret in base64
SECRET_BYTES_MIN = 16


class Webhook:
    """Any server that checks `webhook-signature`; it must know an id again, for messages come at least once."""

    def send(self, message: Message) -> None:
        """POST the message. Raises NotDelivered unless the answer is 2xx; redirects are not followed."""
        secret = read_secret(message.secret_env)
        at = str(int(time.time()))
        headers = {
            "content-type": "application/json",
            "user-agent": "agent-kernel",
            "webhook-id": str(message.id),
            "webhook-timestamp": at,
            "webhook-signature": signature(secret, str(message.id), at, message.body),
        }
        try:
            status = asyncio.run(asyncio.wait_for(_post(message.target, message.body, headers), SECONDS_MAX))
        except AddressForbidden as error:
            raise NotDelivered(f"{error}: KERNEL_PRIVATE_HOSTS does not name the host") from None
        except NoAddress as error:
            raise NotDelivered(str(error)) from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise NotDelivered(f"{type(error).__name__}: the webhook cannot be reached") from None
        except TimeoutError:
            raise NotDelivered(f"no answer within {SECONDS_MAX:g} s") from None
        if not httpx2.codes.is_success(status):
            raise NotDelivered(f"HTTP {status}")


async def _post(url: str, body: str, headers: dict[str, str]) -> int:
    """The status of the answer, from the first of the checked addresses to which a connection stands."""
    parts = urlsplit(url)
    port = parts.port or PORTS[parts.scheme]
    target = await checked_target(parts.scheme, parts.hostname or "", port, settings.PRIVATE_HOSTS)
    for address in target.addresses[:-1]:
        with contextlib.suppress(httpx2.ConnectError, httpx2.ConnectTimeout):
            return await _post_to(address, target, url, body, headers, CONNECT_SECONDS)
    return await _post_to(target.addresses[-1], target, url, body, headers, SECONDS_MAX)


async def _post_to(
    address: str, target: Target, url: str, body: str, headers: dict[str, str], connect_seconds: float
) -> int:
    """To this address and no other: a name that means something else a moment later leads nowhere."""
    parts = urlsplit(url)
    host = f"[{address}]" if ":" in address else address
    place = parts._replace(netloc=f"{host}:{target.port}").geturl()
    timeout = httpx2.Timeout(SECONDS_MAX, connect=connect_seconds)
    async with (
        httpx2.AsyncClient(timeout=timeout, trust_env=False, follow_redirects=False) as client,
        client.stream(
            "POST", place, content=body.encode(), headers={**headers, "host": parts.netloc},
            extensions={"sni_hostname": target.host},
        ) as answer,
    ):  # fmt: skip
        return int(answer.status_code)


def read_secret(name: str) -> bytes:
    """The secret that the environment holds under this name. Nothing is sent without one."""
    text = os.environ.get(name, "")
    try:
        secret = (
            base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True) if _is_marked(text) else text.encode()
        )
    except binascii.Error:
        raise NotDelivered(f"{name} begins with {SECRET_PREFIX} and is not base64") from None
    if len(secret) < SECRET_BYTES_MIN:
        raise NotDelivered(f"the environment of this process has no {name} of at least {SECRET_BYTES_MIN} bytes")
    return secret


def _is_marked(text: str) -> bool:
    return text.startswith(SECRET_PREFIX)


def signature(secret: bytes, message_id: str, at: str, body: str) -> str:
    """`v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body`."""
    digest = hmac.new(secret, f"{message_id}.{at}.{body}".encode(), hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"
