"""Test a short soak: descriptors, threads and packs do not grow with the number of changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from .soak import ALLOWED, Sample, Soak, grown, table

CHANGES, EVERY = 40, 10


def test_nothing_but_the_history_grows_with_the_number_of_changes(tmp_path: Path) -> None:
    samples = Soak(tmp_path).run(CHANGES, EVERY)
    assert samples[-1].changes == CHANGES
    assert not grown(samples), table(samples)
    later = [sample.descriptors for sample in samples[2:]]
    assert max(later) - min(later) < CHANGES // 2, table(samples)


@pytest.mark.mutant
def test_a_leak_of_one_descriptor_a_change_is_found() -> None:
    samples = [Sample(*(0,) * len(ALLOWED))._replace(changes=n, descriptors=100 + n) for n in range(0, 1_001, 50)]
    assert [text.split(" ")[0] for text in grown(samples)] == ["descriptors"]
