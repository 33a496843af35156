"""Test that every later version can read today's store, and that the written form does not change."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headgate.map.records import Finished
from headgate.recipes import codec
from headgate.recipes.codec import decode
from tests.unit.map.golden import FILE, bytes_of, records, types_of_places

RECORDS = records()
GOLDEN: dict[str, dict[str, str]] = json.loads(FILE.read_text())


@pytest.mark.parametrize("format", range(1, codec.FORMAT + 1))
@pytest.mark.parametrize("name", sorted(RECORDS))
def test_records_are_encoded_as_in_their_golden_form(name: str, format: int) -> None:
    record: Any = RECORDS[name]
    golden = GOLDEN[str(format)].get(name)
    assert golden is not None, "a new type: python -m tests.unit.map.golden"
    assert bytes_of(record, format) == golden, "its form has changed: that is a new format"
    assert decode(golden.encode(), type(record)) == record


def test_no_type_that_was_written_is_forgotten() -> None:
    assert GOLDEN[str(codec.FORMAT)].keys() == RECORDS.keys()


RELEASED: dict[str, str] = json.loads((FILE.parent / "release-1139183.json").read_text())
"""Read the bytes that a release wrote, by the name that it had for their type."""
NAMES = {
    "Notices": "PublishedEvents",
    "PipelineRecord": "State",
    "QueueRecord": "Queue",
    "ItemRecord": "Item",
    "BuildSetRecord": "BuildSet",
    "Postings": "OutboxMessages",
    "Proposed": "ProposedFiles",
    "Standing": "ChangeState",
    "Troubles": "RepositoryProblems",
    "Wish": "DesiredState",
}
"""Names of a release -> today's names."""


@pytest.mark.parametrize("name", sorted(RELEASED))
def test_bytes_that_a_release_wrote_are_read_and_lose_nothing(name: str) -> None:
    before = json.loads(RELEASED[name])
    record = decode(RELEASED[name].encode(), type(RECORDS[NAMES.get(name, name)]))
    before.pop("v", None)
    assert says(json.loads(bytes_of(record, 1)), before)


def says(after: Any, before: Any) -> bool:
    """Return whether the value contains everything that it contained before, and perhaps more."""
    if isinstance(before, dict):
        return all(name in after and says(after[name], value) for name, value in before.items())
    if isinstance(before, list):
        return len(after) == len(before) and all(map(says, after, before))
    return bool(after == before)


def test_artifacts_that_no_job_may_return_any_more_are_left_out_of_the_history() -> None:
    build = {"uuid": "b1", "job_name": "unit", "result": "SUCCESS", "artifacts": [{"name": 7, "url": None}]}
    old = json.loads(RELEASED["Finished"]) | {"builds": [build]}
    read = decode(json.dumps(old).encode(), Finished)
    assert [(one.uuid, one.artifacts) for one in read.builds] == [("b1", ())] and read.tenant == "text"
    with pytest.raises(ValueError):
        decode(json.dumps(old | {"builds": [7]}).encode(), Finished)


def test_every_type_has_a_name_of_its_own() -> None:
    assert len(types_of_places()) == len({kind.__name__ for kind in types_of_places()})
