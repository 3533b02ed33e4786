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
    [
        "\u202e",
        "\u200b",
        "\u2066",
        "\ufeff",
        "\x00",
        "\x1b",
        "\r",
        "\u00a0",
        "\u3164",
        "\U000e0041",
        "\ud800",
        "\ufe00",
        "\ufe0f",
        "\U000e0100",
        "\U000e01ef",
        "\u034f",
        "\u17b4",
        "\u180b",
        "\u180f",
        "\u2065",
        "\U000e0fff",
    ],
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


@pytest.mark.parametrize(
    "word",
    [
        "\u0440\u0430\u0443\u0440\u0430\u04cf",  # "paypal" in Cyrillic letters only
        "\u0405\u0421\u041e\u0420\u0415",  # "SCOPE"
        "\u03bf\u03c5\u03bd\u03bf",  # "ouvo" in Greek
        "\u0391\u03a1\u0399",  # "API" in Greek
        "\U0001d429\U0001d41a\U0001d432",  # "pay" in mathematical bold
        "pa\U0001d432",
        "\uff50\uff41\uff59",  # "pay" in full width
    ],
)
def test_words_of_another_alphabet_that_look_latin_are_told(word):
    assert look_alikes(f'{{"to": "{word}"}}') == [word]


def test_words_of_another_alphabet_that_look_like_themselves_are_not_told():
    assert look_alikes("Переведите деньги на счёт, και το ποσό, 東京, ﬁnance, nº, straße") == []
