"""Test that the demonstration on a forge runs the pipelines of that forge's page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headgate.cli.scenario.forges.host import pipelines
from headgate.cli.scenario.venues import HOSTS

PAGES = Path(__file__).parents[3] / "docs" / "how-to"


@pytest.mark.parametrize("forge", sorted(HOSTS))
def test_its_pipelines_are_those_of_the_page(forge: str) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (PAGES / f"use-{forge}.md").read_text(), re.DOTALL)
    assert pipelines(forge) in blocks
