"""Hostile text is shown as text, and what the eye would miss is named."""

from __future__ import annotations

import pytest

from kernel_project.visible_text import hidden_count, look_alikes, shown


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("plain <b>&amp;</b>", "plain &lt;b&gt;&amp;amp;&lt;/b&gt;"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("Grüße 東京 👍", "Grüße 東京 👍"),
    ],
)
def test_what_can_be_seen_stays_as_it_is(text, html):
    assert shown(text) == html


@pytest.mark.parametrize(
    "character",
    ["\u202e", "\u200b", "\u2066", "\ufeff", "\x00", "\x1b", "\r", "\u00a0", "\u3164", "\U000e0041", "\ud800"],
)
def test_what_cannot_be_seen_is_named(character):
    html = shown(f"a{character}b")
    assert f"U+{ord(character):04X}" in html
    assert character not in html
    assert hidden_count(f"a{character}b") == 1


def test_a_cut_is_told():
    assert shown("x" * 30, 10).startswith("x" * 10 + '<span class="k-cut">… 20 more characters')


def test_words_of_two_alphabets_are_told():
    assert look_alikes("p\u0430ypal und \u041c\u043e\u0441\u043a\u0432\u0430 and Ελλάδα, naïve") == ["p\u0430ypal"]
