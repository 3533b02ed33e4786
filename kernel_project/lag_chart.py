"""Draws the lag of the last hour as lines of an SVG. Pure: samples in, coordinates out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from outbox.lag_history import SAMPLE_SECONDS, WINDOW_SECONDS, Sample

HEIGHT = 100.0  # of the drawing, in its own units; its width is the window in seconds
TOP_SECONDS_MIN = 5.0  # a smaller lag is not blown up to fill the picture
HOLE_SECONDS = 4 * SAMPLE_SECONDS  # without a sample for so long, the line is broken


@dataclass(frozen=True)
class Chart:
    """Pieces of a line, each as the `points` of a polyline and of the area below it."""

    lines: Sequence[str]
    areas: Sequence[str]
    peak_seconds: float
    top_seconds: float
    samples: int
    width: float = WINDOW_SECONDS
    height: float = HEIGHT

    @property
    def described(self) -> str:
        """The picture in words."""
        if not self.samples:
            return "No samples of the last hour"
        return f"Age of the oldest waiting event over the last hour: {self.peak_seconds:.1f} s at most"


def draw(samples: Sequence[Sample]) -> Chart:
    """The oldest sample at the left, now at the right."""
    peak = max((one.oldest_seconds for one in samples), default=0.0)
    top = max(peak, TOP_SECONDS_MIN)
    pieces = [[_point(one, top) for one in piece] for piece in _pieces(samples)]
    return Chart(
        lines=[" ".join(f"{x:.0f},{y:.1f}" for x, y in piece) for piece in pieces],
        areas=[" ".join(f"{x:.0f},{y:.1f}" for x, y in _closed(piece)) for piece in pieces],
        peak_seconds=peak,
        top_seconds=top,
        samples=len(samples),
    )


def _pieces(samples: Sequence[Sample]) -> Iterator[list[Sample]]:
    """The samples, cut where nobody took one."""
    piece: list[Sample] = []
    for one in samples:
        if piece and piece[-1].age_seconds - one.age_seconds > HOLE_SECONDS:
            yield piece
            piece = []
        piece.append(one)
    if piece:
        yield piece


def _point(sample: Sample, top: float) -> tuple[float, float]:
    return WINDOW_SECONDS - sample.age_seconds, HEIGHT * (1 - sample.oldest_seconds / top)


def _closed(piece: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(piece[0][0], HEIGHT), *piece, (piece[-1][0], HEIGHT)]
