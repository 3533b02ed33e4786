"""Output is bounded while it is read, counted in full, and never cut inside a character."""

from __future__ import annotations

import random

import pytest

from runs.boundary.sandbox.output import BoundedOutput, readable


def _fed(data: bytes, bytes_max: int, chunk_bytes: int) -> BoundedOutput:
    output = BoundedOutput(bytes_max)
    for start in range(0, len(data), chunk_bytes):
        output.add(data[start : start + chunk_bytes])
    return output


@pytest.mark.parametrize("chunk_bytes", [1, 3, 7, 64, 1000])
@pytest.mark.parametrize("size", [0, 1, 99, 100])
def test_what_fits_is_kept_whole(size: int, chunk_bytes: int) -> None:
    data = bytes(range(97, 122)) * 4
    output = _fed(data[:size], 100, chunk_bytes)
    assert (output.text(), output.truncated, output.total) == (data[:size], False, size)


@pytest.mark.parametrize("chunk_bytes", [1, 3, 7, 64, 1000])
def test_head_and_tail_are_kept_and_the_rest_is_counted(chunk_bytes: int) -> None:
    output = _fed(b"H" * 50 + b"x" * 321 + b"T" * 50, 100, chunk_bytes)
    assert output.text() == b"H" * 50 + b"\n[... 321 bytes left out ...]\n" + b"T" * 50
    assert (output.total, output.truncated) == (421, True)


def test_a_flood_takes_no_more_memory_than_the_limit() -> None:
    output = BoundedOutput(1000)
    for _ in range(10_000):
        output.add(b"x" * 777)
    assert output.total == 7_770_000
    assert sum(map(len, output._tail)) <= 500 + 777


@pytest.mark.parametrize("seed", range(20))
def test_no_character_is_cut_in_two(seed: int) -> None:
    chance = random.Random(seed)
    text = "".join(chance.choice("aé€😀") for _ in range(400))
    output = _fed(text.encode(), chance.randint(20, 200), chance.randint(1, 50))
    head, _, rest = output.text().decode().partition("\n[... ")
    left_out, _, tail = rest.partition(" bytes left out ...]\n")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head.encode()) + int(left_out) + len(tail.encode()) == len(text.encode())


def test_bytes_that_are_no_text_stay_visible() -> None:
    assert readable(b"a\x00b\xffc\xe2\x82\n") == "a\\x00b\\xffc\\xe2\\x82"
