"""What is in a store today can be read by every version to come, and is written as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headgate.recipes import codec
from headgate.recipes.codec import decode
from tests.unit.map.golden import FILE, bytes_of, records, types_of_places

RECORDS = records()
GOLDEN: dict[str, dict[str, str]] = json.loads(FILE.read_text())


@pytest.mark.parametrize("format", range(1, codec.FORMAT + 1))
@pytest.mark.parametrize("name", sorted(RECORDS))
def test_bytes_of_each_format_are_what_they_were(name: str, format: int) -> None:
    record: Any = RECORDS[name]
    golden = GOLDEN[str(format)].get(name)
    assert golden is not None, "a new type: python -m tests.unit.map.golden"
    assert bytes_of(record, format) == golden, "its form has changed: that is a new format"
    assert decode(golden.encode(), type(record)) == record


def test_no_type_that_was_written_is_forgotten() -> None:
    assert GOLDEN[str(codec.FORMAT)].keys() == RECORDS.keys()


RELEASE = "1139183"
NAMES = {"PipelineRecord": "State", "QueueRecord": "Queue", "ItemRecord": "Item", "BuildSetRecord": "BuildSet"}
"""What a release called them -> what they are called today."""


@pytest.mark.parametrize("name", sorted(GOLDEN[RELEASE]))
def test_bytes_that_a_release_wrote_are_read_and_lose_nothing(name: str) -> None:
    before = json.loads(GOLDEN[RELEASE][name])
    record = decode(GOLDEN[RELEASE][name].encode(), type(RECORDS[NAMES.get(name, name)]))
    after = json.loads(bytes_of(record, 1))
    before.pop("v", None)
    assert before.items() <= after.items() or before == after


def test_every_type_has_a_name_of_its_own() -> None:
    assert len(types_of_places()) == len({kind.__name__ for kind in types_of_places()})
