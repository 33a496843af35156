"""Test that the demonstration plays the page about machines."""

from __future__ import annotations

from pathlib import Path

from headgate.cli.scenario import machines

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "burn-in-machines.md").read_text()


def test_the_page_contains_the_configuration_of_the_demonstration() -> None:
    for text in (machines.BURN_IN_CONFIG, machines.BURN_IN, machines.BURN_IN_TENANTS, machines.LAB):
        assert text.strip() in PAGE
