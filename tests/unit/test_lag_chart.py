"""The picture of the last hour's lag, as coordinates."""

from __future__ import annotations

from kernel_project.lag_chart import draw
from outbox.lag_history import Sample


def samples(*places):
    return [Sample(age_seconds=age, pending=int(lag), oldest_seconds=lag) for age, lag in places]


def test_the_oldest_sample_is_at_the_left_and_the_highest_at_the_top():
    chart = draw(samples((3600, 0.0), (3585, 10.0), (3570, 5.0)))
    assert chart.lines == ["0,100.0 15,0.0 30,50.0"]
    assert chart.areas == ["0,100.0 0,100.0 15,0.0 30,50.0 30,100.0"]
    assert chart.peak_seconds == 10.0


def test_where_nobody_took_a_sample_the_line_is_broken():
    chart = draw(samples((3000, 1.0), (2985, 1.0), (600, 1.0), (585, 1.0)))
    assert len(chart.lines) == 2


def test_a_small_lag_does_not_fill_the_picture():
    assert draw(samples((15, 0.05), (0, 0.05))).lines == ["3585,99.0 3600,99.0"]


def test_without_samples_it_says_so():
    assert draw([]).described == "No samples of the last hour"
