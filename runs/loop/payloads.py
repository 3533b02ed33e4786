"""What Temporal keeps, sealed: inputs, results, memos, heartbeats and failures. Plain ones are still read."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache

from django.conf import settings
from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter, DefaultFailureConverterWithEncodedAttributes, PayloadCodec

from kernel_project.primitives import keyring

ENCODING = b"binary/encrypted"
ABOUT = "temporal payload"


class SealingCodec(PayloadCodec):
    """Seals each payload with the newest key; opens those of every key that is configured."""

    def __init__(self, keys: keyring.Keyring) -> None:
        self._keys = keys

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self.seal(one) for one in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self.open(one) for one in payloads]

    def seal(self, payload: Payload) -> Payload:
        """The payload sealed; it says so, and with which key."""
        metadata = {"encoding": ENCODING, "encryption-key-id": self._keys.newest.encode()}
        return Payload(metadata=metadata, data=self._keys.seal(payload.SerializeToString(), ABOUT))

    def open(self, payload: Payload) -> Payload:
        """The payload itself. Raises keyring.KeyUnavailable and keyring.Damaged."""
        if payload.metadata.get("encoding") != ENCODING:
            return payload
        return Payload.FromString(self._keys.open(payload.data, ABOUT))


@cache
def codec() -> SealingCodec | None:
    """The codec of TEMPORAL_PAYLOAD_KEYS, if it names any."""
    keys = keyring.load(settings.TEMPORAL_PAYLOAD_KEYS)
    return SealingCodec(keys) if keys.keys else None


def converter() -> DataConverter:
    """How clients and workers write and read payloads."""
    if codec() is None:
        return pydantic_data_converter
    return dataclasses.replace(
        pydantic_data_converter,
        payload_codec=codec(),
        failure_converter_class=DefaultFailureConverterWithEncodedAttributes,
    )
