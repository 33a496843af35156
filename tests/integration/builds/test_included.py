"""Test files of variables that a job includes: below the configuration, above the data that parent jobs returned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headgate.config.model import IncludeVars

from .bench import PROJECT, Bench

SAYS = (
    "python3 -c \"import json, os; v = json.load(open(os.environ['HEADGATE_VARS'])); "
    "print('said', json.dumps([v.get(n) for n in ('a', 'b', 'c', 'd')]))\""
)
PLAY = """
- hosts: localhost
  gather_facts: false
  tasks:
    - command: echo said {{ [a, b, c, d] | to_json }}
"""


def file(name: str, *, required: bool = True) -> IncludeVars:
    return IncludeVars(name, PROJECT, "local", "master", required=required)


@pytest.mark.long
@pytest.mark.parametrize("ansible", [False, True])
async def test_the_last_file_wins_and_the_configuration_wins_over_files(tmp_path: Path, ansible: bool) -> None:
    bench = Bench(tmp_path)
    bench.script("one.yaml", "{a: 1, b: 1, c: 1}")
    bench.script("vars/two.json", '{"b": 2, "c": 2}')
    outcome = await bench.build(
        run=(bench.script("play.yaml", PLAY) if ansible else bench.script("says", SAYS),),
        include_vars=(file("one.yaml"), file("vars/two.json"), file("three.yaml", required=False)),
        vars={"c": 3},
        spec={"parent_data": {"a": 0, "d": 0}},
    )
    assert outcome.result == "SUCCESS", bench.log
    line = next(line for line in bench.log.splitlines() if "said [" in line)
    assert json.loads(line.partition("said ")[2]) == [1, 2, 3, 0]


async def test_a_file_of_the_project_of_the_change(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.script("own.yaml", "a: own")
    outcome = await bench.build(
        run=(bench.script("says", SAYS),), include_vars=(IncludeVars("own.yaml", zuul_project=True),)
    )
    assert outcome.result == "SUCCESS" and '| said ["own", null, null, null]' in bench.log


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "has no file bad.yaml, from which job job includes variables"),
        ("[1, 2]", "that cannot be included: it is not a mapping of names to values"),
        ("{a: [", "that cannot be included: line 1: this is not YAML"),
        ("{ansible_connection: local}", "it sets ansible_connection, which is reserved"),
        ("a: " + "x" * 1_000_001, "it is larger than 1000 kB"),
    ],
)
async def test_a_file_that_cannot_be_included_is_an_error_with_its_reason(
    tmp_path: Path, text: str | None, why: str
) -> None:
    bench = Bench(tmp_path)
    if text is not None:
        (bench.source / "bad.yaml").write_text(text)
    outcome = await bench.build(run=(bench.script("says", SAYS),), include_vars=(file("bad.yaml"),))
    assert outcome.result == "ERROR" and why in outcome.error
    assert why in bench.log
