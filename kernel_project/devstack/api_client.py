"""A client of the JSON API, as an application would write one. Knows HTTP only."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx2

REQUEST_TIMEOUT_SECONDS = 15.0
POLL_SECONDS = 0.2
Json = dict[str, Any]


class NotAsPromised(Exception):
    """Something is not as it should be; the message says what."""


def printed_key(output: str) -> str:
    """The key in what `manage.py create_api_key` printed."""
    return next(word for word in output.split() if word.startswith("ak_"))


class Client:
    """One API key at one address."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url
        self._http = httpx2.Client(
            base_url=f"{url}/api/v1",
            headers={"Authorization": f"Bearer {key}"},
            timeout=REQUEST_TIMEOUT_SECONDS,
            trust_env=False,
        )

    def get(self, path: str, **query: str) -> Any:
        return self._read(self._http.get(path, params=query))

    def post(self, path: str, body: Json, **headers: str) -> Any:
        return self._read(self._http.post(path, json=body, headers=headers))

    def items(self, path: str, **query: str) -> list[Json]:
        """All pages of a list."""
        found: list[Json] = []
        place: dict[str, str] = {}
        while True:
            page = self.get(path, **query, **place)
            found += page["items"]
            if page.get("next"):
                place = {"cursor": page["next"]}
            elif page.get("next_after") is not None:
                place = {"after": str(page["next_after"])}
            else:
                return found

    def until(self, what: str, look: Callable[[], Any], seconds: float) -> Any:
        """Wait until `look` gives something; fails with `what` when it does not in time."""
        deadline = time.monotonic() + seconds
        while True:
            if found := look():
                return found
            if time.monotonic() > deadline:
                raise NotAsPromised(f"{what}: not within {seconds:.0f} s")
            time.sleep(POLL_SECONDS)

    def refusal(self, path: str, body: Json, key: str) -> tuple[int, str]:
        """The HTTP status of a POST, whatever it is, and when to try again."""
        answer = self._http.post(path, json=body, headers={"Idempotency-Key": key})
        return answer.status_code, answer.headers.get("Retry-After", "")

    def is_ready(self) -> bool:
        """What /readyz says; an answer that does not come in time is no yes."""
        try:
            return self._http.get(f"{self._url}/readyz").is_success
        except httpx2.TimeoutException:
            return False

    @staticmethod
    def _read(answer: httpx2.Response) -> Any:
        if answer.is_error:
            raise NotAsPromised(
                f"{answer.request.method} {answer.request.url.path}: {answer.status_code} {answer.text[:300]}"
            )
        return answer.json()
