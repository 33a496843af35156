"""Test that statuses use only a part of the loop's time, however many clients request them."""

from __future__ import annotations

import pytest

from headgate.web import shots as budget
from headgate.web.shots import BURST_S, LEAST_S, SHARE, Spent


def test_the_statuses_of_a_tenant_use_a_bounded_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    worked_s, made = 0.0, 0
    monkeypatch.setattr(budget.time, "thread_time", lambda: worked_s)
    spent, cost_s, asked_a_second, seconds = Spent(), 0.01, 20, 60
    for ask in range(asked_a_second * seconds):
        if spent.may(ask / asked_a_second):
            with spent.counting():
                worked_s += cost_s
            made += 1
    assert BURST_S + SHARE * seconds - cost_s <= worked_s <= BURST_S + SHARE * seconds + 2 * cost_s
    assert made < asked_a_second * seconds / 8
    assert not spent.may(seconds)
    spent.once_more()
    assert spent.may(seconds), "who changed something sees it"


def test_of_statuses_that_cost_nothing_a_few_are_made_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget.time, "thread_time", lambda: 0.0)
    spent, asked_a_second, seconds, made = Spent(), 1_000, 60, 0
    for ask in range(asked_a_second * seconds):
        if spent.may(ask / asked_a_second):
            with spent.counting():
                made += 1
    assert made == pytest.approx((BURST_S + SHARE * seconds) / LEAST_S, abs=2)
