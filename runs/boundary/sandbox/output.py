"""Output of a command, bounded while it is read: head and tail are kept, all bytes are counted."""

from __future__ import annotations

from collections import deque

CHARACTER_BYTES_MAX = 4  # of one UTF-8 character


class BoundedOutput:
    """Keeps the first and the last half of `bytes_max`; never holds more than that and one chunk."""

    def __init__(self, bytes_max: int) -> None:
        self.head_max = (bytes_max + 1) // 2
        self.tail_max = bytes_max - self.head_max
        self.total = 0
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        room = self.head_max - len(self._head)
        self._head += chunk[:room] if room > 0 else b""
        if rest := chunk[max(room, 0) :]:
            self._tail.append(rest)
            self._tail_size += len(rest)
        while self._tail and self._tail_size - len(self._tail[0]) >= self.tail_max:
            self._tail_size -= len(self._tail.popleft())

    @property
    def truncated(self) -> bool:
        return self.total > self.head_max + self.tail_max

    def text(self) -> bytes:
        """All of it, or head and tail around a line that says how much is missing; no character is cut in two."""
        tail = b"".join(self._tail)
        if not self.truncated:
            return bytes(self._head) + tail
        head = _without_begun_character(bytes(self._head))
        tail = _without_continuation(tail[len(tail) - self.tail_max :])
        left_out = self.total - len(head) - len(tail)
        return head + f"\n[... {left_out} bytes left out ...]\n".encode() + tail


def _without_begun_character(data: bytes) -> bytes:
    for back in range(1, min(CHARACTER_BYTES_MAX, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:  # the last one that begins a character
            needed = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if needed > back else data
    return data


def _without_continuation(data: bytes) -> bytes:
    for start in range(min(CHARACTER_BYTES_MAX, len(data))):
        if data[start] & 0xC0 != 0x80:
            return data[start:]
    return data


def readable(output: bytes) -> str:
    """Text that any store takes: bytes that are no UTF-8, and NUL, stand as \\xNN."""
    return output.decode(errors="backslashreplace").replace("\0", "\\x00").removesuffix("\n")
