"""Test the request count of one item: counts are exact while times are noisy."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.testing.gate import cost_of_item


async def test_an_item_with_ten_jobs_costs_at_most_sixty_requests(tmp_path: Path) -> None:
    cost = await cost_of_item(tmp_path, 10)
    assert cost.requests <= 60, cost


@pytest.mark.long
async def test_each_further_job_costs_at_most_four_requests(tmp_path: Path) -> None:
    one, many = await cost_of_item(tmp_path / "1", 1), await cost_of_item(tmp_path / "50", 50)
    assert many.requests - one.requests <= 4 * 49, (one, many)


@pytest.mark.long
async def test_an_item_with_a_hundred_jobs_writes_under_a_megabyte_and_no_job_more_than_another(tmp_path: Path) -> None:
    few, half, all = [(await cost_of_item(tmp_path / str(n), n)).written_bytes for n in (10, 55, 100)]
    assert all < 1_000_000, all
    assert all - half <= 1.1 * (half - few), (few, half, all)
