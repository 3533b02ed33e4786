"""The ledger of the drill is an outside world that can be trusted to count, and to misbehave as told."""

from __future__ import annotations

import httpx2
import pytest

from kernel_project.drill.ledger_process import ADDRESS_VARIABLE, LedgerClient, LedgerProcess


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    with LedgerProcess(tmp_path / "ledger") as process:
        monkeypatch.setenv(ADDRESS_VARIABLE, process.address)
        yield process


def test_a_keyed_effect_is_booked_once_and_an_opaque_one_each_time(ledger):
    client = LedgerClient()
    for mode in ("keyed", "keyed", "opaque", "opaque"):
        assert client.book(mode, mode, f"key-{mode}") == f"booked {mode}"
    assert ledger.counts() == {"keyed": 1, "opaque": 2}
    assert [client.found(key) for key in ("key-keyed", "key-opaque", "key-none")] == [1, 2, 0]


def test_without_a_key_nothing_is_held_for_the_same(ledger):
    for _ in range(2):
        LedgerClient().book("keyed", "a", "")
    assert ledger.counts() == {"a": 2}


def test_it_commits_and_hangs_up_once_when_told_to(ledger):
    ledger.breaks("a", "close")
    with pytest.raises(httpx2.RemoteProtocolError):
        LedgerClient().book("keyed", "a", "k")
    assert ledger.counts() == {"a": 1}
    assert LedgerClient().book("keyed", "a", "k") == "booked a"
    assert ledger.counts() == {"a": 1}


def test_it_answers_late_when_told_to(ledger):
    ledger.breaks("a", "slow")
    with pytest.raises(httpx2.ReadTimeout):
        LedgerClient(timeout_seconds=0.3).book("opaque", "a", "k")
    assert ledger.counts() == {"a": 1}


def test_what_it_does_not_know_is_not_booked(ledger):
    with pytest.raises(httpx2.HTTPStatusError):
        LedgerClient().book("unknown", "a", "k")
    assert ledger.counts() == {}
