"""Test the measured month: the same seed gives the same month, and nothing lands untested."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import asdict

import pytest

from headgate.testing.month import LIBRARIES, REPOSITORIES, SERVICES, Month, MonthFigures, shapes


def played(*, reuse: bool, failing: float = 0.2) -> MonthFigures:
    return Month(3, failing, reuse=reuse, changes=40, days=1).run()


@pytest.mark.long
def test_builds_are_spared_and_as_much_lands() -> None:
    without, with_it = played(reuse=False), played(reuse=True)
    assert not with_it.untested and with_it.reused and not without.reused
    assert with_it.builds < without.builds and with_it.machine_h < without.machine_h
    assert (len(with_it.landed_s), with_it.rejected) == (len(without.landed_s), without.rejected)
    assert len(with_it.landed_s) + with_it.rejected == 40 and with_it.rejected


@pytest.mark.long
def test_a_seed_is_one_month() -> None:
    assert asdict(played(reuse=True)) == asdict(played(reuse=True)) != asdict(played(reuse=True, failing=0.1))


def test_builds_that_run_when_a_change_ahead_fails_continue() -> None:
    assert played(reuse=True).carried and not played(reuse=False).carried


def test_the_repositories_have_the_documented_shape() -> None:
    jobs = shapes(random.Random(1))
    used = Counter(one for given in jobs.values() for one in given.get("functional", ()))
    integrated = {name for name, given in jobs.items() if "integrated" in given}
    assert len(jobs) == REPOSITORIES and SERVICES < len(integrated) < SERVICES + LIBRARIES
    assert all(given["integrated"] == jobs[next(iter(integrated))]["integrated"] for given in map(jobs.get, integrated))  # type: ignore[index]  # they have it
    few = sum(count for _, count in used.most_common(6))
    assert few > sum(used.values()) / 3, "of those that are used, few are used much"
