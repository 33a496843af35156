"""Test what the demo prints about a busy machine."""

from __future__ import annotations

import os

import pytest

from headgate.cli.scenario.demo import BUSY, _load


@pytest.mark.parametrize(("average", "words"), [(0.3, ""), (4.0 * BUSY, ""), (4.0 * BUSY + 0.7, " at load 17")])
def test_the_load_is_named_where_it_delays_builds(average: float, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "getloadavg", lambda: (average, 0.0, 0.0))
    assert _load() == words
