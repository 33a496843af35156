"""Test that data returned by a job passes, or is that build's failure; no later reader may raise an error."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.config.model import FrozenGraph, FrozenJob, JobDependency
from headgate.gate.builds.graph import skipped
from headgate.gate.builds.provisions import provided_artifacts
from headgate.gate.builds.report import artifacts
from headgate.gate.state.model import Build, BuildSet
from headgate.gate.state.returns import DEPTH_MAX, Unfit, bounded, checked, joined, parsed
from headgate.gate.state.works import BuildEnded, BuildOutcome
from headgate.recipes.codec import decode, encode
from headgate.testing.plays import Play

HALF = "\ud800"
AFTER = FrozenJob(name="after", dependencies=(JobDependency("unit"),))


class Counted(str):
    """Count how often names are compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)


def deep(levels: int) -> Any:
    value: Any = "end"
    for _ in range(levels):
        value = [value]
    return value


UNFIT = {
    "child that is not a name": {"zuul": {"child_jobs": [{}]}},
    "children that are no list": {"zuul": {"child_jobs": "one"}},
    "half a character": {"a": HALF},
    "half a character in a key": {HALF: 1},
    "broken address": {"zuul": {"log_url": "http://["}},
    "port that is none": {"zuul": {"log_url": "http://h:port/"}},
    "script": {"zuul": {"log_url": "JavaScript:alert(1)"}},
    "page in an address": {"zuul": {"artifacts": [{"name": "a", "url": "data:text/html,x"}]}},
    "password": {"zuul": {"artifacts": [{"name": "a", "url": "https://me:secret@h/"}]}},
    "address of two lines": {"zuul": {"log_url": "http://h/\n* lands"}},
    "address with an escape": {"zuul": {"log_url": "http://h/\x1b[2J"}},
    "address of a megabyte": {"zuul": {"log_url": "http://h/" + "x" * 5_000}},
    "artifact without an address": {"zuul": {"artifacts": [{"name": "a"}]}},
    "artifact without a name": {"zuul": {"artifacts": [{"name": "", "url": "a"}]}},
    "artifact that is text": {"zuul": {"artifacts": ["a"]}},
    "metadata that is a list": {"zuul": {"artifacts": [{"name": "a", "url": "b", "metadata": []}]}},
    "warning with an escape": {"zuul": {"warnings": ["\x1b]0;title\x07"]}},
    "warning with NUL": {"zuul": {"warnings": ["\0"]}},
    "warnings that are text": {"zuul": {"warnings": "old"}},
    "line below none": {"zuul": {"file_comments": {"a": [{"line": -1, "message": "m"}]}}},
    "line that is true": {"zuul": {"file_comments": {"a": [{"line": True, "message": "m"}]}}},
    "path of two lines": {"zuul": {"file_comments": {"a\nb": [{"line": 1, "message": "m"}]}}},
    "pause that is text": {"zuul": {"pause": "true"}},
    "retry that is a number": {"zuul": {"retry": 0}},
    "zuul that is a list": {"zuul": []},
    "redactions of many lines": {"zuul": {"redactions": ["a\n" * 60, "b\n" * 60]}},
    "redactions of many characters": {"zuul": {"redactions": ["x" * 900] * 10}},
    "number without an end": {"a": float("inf")},
    "no number": {"a": float("nan")},
    "number of a thousand digits": {"a": 10**1_000},
    "too deep": {"a": deep(DEPTH_MAX)},
    "much too deep": {"a": deep(100_000)},
    "too much": {"a": "x" * 300_000},
    "a hundred thousand keys": {str(key): 0 for key in range(100_000)},
    "no JSON": {"a": {1, 2}},
    "key that is not a text": {1: 2},
    "no object": [1],
}


@pytest.mark.heavy
@pytest.mark.parametrize("data", UNFIT.values(), ids=list(UNFIT))
def test_malformed_returned_data_fails_the_build_with_a_reason(data: Any) -> None:
    with pytest.raises(Unfit) as unfit:
        checked(data)
    assert str(unfit.value) and str(unfit.value).isprintable()
    outcome = BuildOutcome("b", "SUCCESS", data=data).fit()
    assert (
        outcome.result == "FAILURE"
        and outcome.data == {}
        and "the data that the job returned is invalid" in outcome.error
    )
    assert msgspec.json.encode(outcome)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"zuul": None},
        {"zuul": {"unknown": [{}], "snapshot_nodes": {"a": 1}, "child_jobs": ["nobody"], "log_url": None}},
        {"zuul": {"artifacts": [{"name": "a", "url": "docker://h:1/b", "more": {"x": [1]}}], "pause": False}},
        {"zuul": {"artifacts": [{"name": "a", "url": "with space/ä:1.html", "metadata": {}}], "log_url": "https://h/"}},
        {"zuul": {"warnings": ["two\nlines"], "file_comments": {"a": [{"message": "m", "level": "info"}]}}},
        {"zuul": {"redactions": ["x" * 80] * 100}},
        {"any": {"a b": ["{{ x }}", "\0", -(2**63), 2**64, 1e300, True, None], "": ""}, "ansible_host": "h"},
        {"a": deep(DEPTH_MAX - 2)},
    ],
)
def test_other_returned_data_passes_unchanged(data: dict[str, Any]) -> None:
    checked(data)
    assert BuildOutcome("b", "SUCCESS", data=data).fit().data == data
    assert parsed(msgspec.json.encode(data)) == data


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[" * 100_000, b'{"a": NaN}', b'{"a": 1e999}', b"1" * 5_000, b'"\xff"', b'"\\ud800"', b"\0", b'"\0"'],
)
def test_bytes_that_are_no_JSON_are_refused(text: bytes) -> None:
    with pytest.raises(Unfit):
        bounded(parsed(text))


TEXTS = st.text(st.characters(codec=None), max_size=6) | st.sampled_from(
    ["http://[", "javascript:x", "\x1b[1m", "a\nb", HALF, "//[", "http://h:99999999/", "::", "%00"]
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS
KEYS = st.sampled_from(
    ["zuul", "artifacts", "child_jobs", "warnings", "log_url", "pause", "retry", "file_comments", "name", "url", "line",
     "message", "metadata", "redactions", "", HALF]
)  # fmt: skip
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)
ZUUL = st.fixed_dictionaries(
    {},
    optional={
        "artifacts": VALUES | st.lists(st.fixed_dictionaries({"name": LEAVES, "url": LEAVES}), max_size=2),
        "child_jobs": VALUES | st.lists(LEAVES, max_size=2),
        "log_url": LEAVES,
        "warnings": VALUES | st.lists(LEAVES, max_size=2),
        "pause": LEAVES,
        "other": VALUES,
    },
)


@pytest.mark.heavy
@given(st.dictionaries(KEYS, VALUES, max_size=3) | st.fixed_dictionaries({"zuul": ZUUL}))
def test_any_returned_data_is_accepted_or_fails_only_its_build(data: dict[str, Any]) -> None:
    """Follow the data from the executor's answer over the scheduler's turns and the store to the report and the next
    jobs."""
    play = Play("unit", AFTER)
    play.approve("A", "B")
    play.merges()
    spec = play.running_spec("A", "unit")
    play.running.pop(spec.build)
    outcome = BuildOutcome(spec.build, "SUCCESS", data=data).fit()
    build = Build(spec.build, "unit", result=outcome.result, error=outcome.error, data=outcome.data)
    assert (build.result, build.data) in (("SUCCESS", data), ("FAILURE", {}))
    given = provided_artifacts(build, spec.job, play.item("A"))
    assert decode(encode(build), Build) == build and msgspec.json.encode([artifacts(build), given])
    play.act(BuildEnded(spec.buildset, "unit", BuildOutcome(spec.build, "SUCCESS", data=data)))
    for _ in range(3):
        play.merges()
        for name in ("A", "B"):
            play.passes(name)
        for name in play.landing_names:
            play.lands(name)
    assert play.ended["B"] == "SUCCESS" and play.ended["A"] in ("SUCCESS", "FAILURE") and play.queue == []


@given(TEXTS, TEXTS)
def test_addresses_are_joined_without_an_error(base: str, url: str) -> None:
    address = joined(base, url)
    assert address == "" or checked({"zuul": {"log_url": address}})


@pytest.mark.heavy
@pytest.mark.parametrize("name", sorted(UNFIT.keys() - {"key that is not a text"}))
def test_a_build_stored_by_an_older_version_fails_when_it_is_read(name: str) -> None:
    try:
        data = json.loads(json.dumps(UNFIT[name]))
        content = json.dumps(
            {"id": "b", "job": "unit", "result": "SUCCESS", "data": data, "log_url": "http://["}
        ).encode()
    except (TypeError, RecursionError):
        return  # no version could have stored it
    try:
        build = decode(content, Build)
    except ValueError:
        return  # it is damaged, as any other record may be
    assert build.result == "FAILURE" and build.data == {} and build.log_url == "" and "invalid" in build.error


def test_the_lines_that_say_why_a_build_failed_are_in_the_report_and_begin_none_of_headgate_s() -> None:
    play = Play("unit")
    play.approve("A")
    play.merges()
    spec = play.running_spec("A", "unit")
    play.running.pop(spec.build)
    excerpt = "ERROR: it is wrong\nHeadgate (gate): landed\n" + "x" * 5_000
    play.act(BuildEnded(spec.buildset, "unit", BuildOutcome(spec.build, "FAILURE", excerpt=excerpt)))
    lines = play.messages["A"].splitlines()
    assert "    ERROR: it is wrong" in lines and "    Headgate (gate): landed" in lines
    assert not any(line.startswith("Headgate (") for line in lines[1:]) and sum(map(len, lines)) < 2_000


def test_names_of_very_many_jobs_are_not_compared_with_each_other() -> None:
    first = FrozenJob(name="first")
    after = [FrozenJob(name=Counted(f"after-{n}"), dependencies=(JobDependency("first"),)) for n in range(50)]
    names = [f"nobody-{n}" for n in range(10_000)]
    build = Build("b", "first", result="SUCCESS", data={"zuul": {"child_jobs": [*names, "after-7"]}})
    buildset = BuildSet("s", graph=FrozenGraph((first, *after)), builds={"first": build})
    assert set(skipped(buildset)) == {f"after-{n}" for n in range(50) if n != 7}
    assert Counted.compared < 10_000
