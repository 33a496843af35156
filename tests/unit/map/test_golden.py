"""What is in a store today can be read by every version to come, and is written as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headgate.recipes import codec
from headgate.recipes.codec import decode
from tests.unit.map.golden import FILE, bytes_of, records

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
