"""Test a few faults: the short version of `make faults`."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.cli.terminal.screen import Terminal
from tests.faults.__main__ import run, table
from tests.faults.faults import SHORT


@pytest.mark.long
@pytest.mark.parametrize("engine", ["etcd", pytest.param("zookeeper", marks=pytest.mark.soak)])
async def test_faults_of_processes_and_servers_change_no_result(tmp_path: Path, engine: str) -> None:
    outcomes = await run(tmp_path, engine, SHORT[engine], 8)
    Terminal().print(table(engine, outcomes))
    assert [one.fault for one in outcomes] == list(SHORT[engine])
    if untried := [one.untried for one in outcomes if one.untried]:
        pytest.skip("; ".join(untried))
