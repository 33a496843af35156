"""The month that is measured: the same from the same seed, and nothing lands in it that was not tested."""

from __future__ import annotations

from dataclasses import asdict

from headgate.testing.month import Figures, Month


def played(*, reuse: bool, failing: float = 0.2) -> Figures:
    return Month(3, failing, reuse=reuse, changes=40, days=1).run()


def test_builds_are_spared_and_as_much_lands() -> None:
    without, with_it = played(reuse=False), played(reuse=True)
    assert not with_it.untested and with_it.reused and not without.reused
    assert with_it.builds < without.builds and with_it.machine_h < without.machine_h
    assert (len(with_it.landed_s), with_it.rejected) == (len(without.landed_s), without.rejected)
    assert len(with_it.landed_s) + with_it.rejected == 40 and with_it.rejected


def test_a_seed_is_one_month() -> None:
    assert asdict(played(reuse=True)) == asdict(played(reuse=True)) != asdict(played(reuse=True, failing=0.1))
