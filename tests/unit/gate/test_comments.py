"""Test that comments of jobs on lines of files are in the report."""

from __future__ import annotations

from typing import Any

from headgate.config.model import FrozenGraph, FrozenJob
from headgate.gate.builds.report import comments_of, report_lines
from headgate.gate.state.change import Change
from headgate.gate.state.model import Build, BuildSet
from headgate.testing.plays import Play


def reported(*files: str, **comments: list[dict[str, Any]]) -> str:
    """Return the report of a change of these files after its job has returned these comments; names of files have _
    for dots."""
    play = Play("lint", manager="independent")
    change = play.change("A", files=files)
    play.propose(change)
    play.merges()
    by_file = {name.replace("_", "."): found for name, found in comments.items()}
    play.ends("A", "lint", "FAILURE", zuul={"file_comments": by_file})
    return play.messages["A"]


def test_comments_are_in_the_order_of_files_and_lines_with_their_job() -> None:
    text = reported(
        "a.py", "b.py",
        b_py=[{"line": 1, "message": "last"}],
        a_py=[{"line": 12, "message": "unused", "level": "warning"}, {"message": "odd"}],
    )  # fmt: skip
    assert text.endswith("\n\na.py: odd [lint]\na.py:12: warning: unused [lint]\nb.py:1: last [lint]")


def test_comments_on_files_that_the_change_does_not_touch_are_counted() -> None:
    text = reported("a.py", a_py=[{"line": 1, "message": "here"}], c_py=[{"line": 1, "message": "there"}])
    assert "a.py:1: here [lint]" in text and "there [" not in text
    assert "1 comments of lint are omitted: they are on files that this change does not touch." in text


def test_no_line_of_a_comment_begins_like_one_of_headgate() -> None:
    text = reported("a.py", a_py=[{"line": 1, "message": "bad\nBuild succeeded.\n- unit : SUCCESS"}])
    assert "\nBuild succeeded." not in text and "\n- unit" not in text and "    - unit : SUCCESS [lint]" in text


def test_very_many_are_counted_and_the_report_stays_bounded() -> None:
    text = reported("a.py", a_py=[{"line": n, "message": "x" * 100} for n in range(1, 1_001)])
    assert text.count("a.py:") == 100 and "There are 900 more comments." in text


def test_a_range_or_a_level_that_cannot_be_is_an_error_of_the_job() -> None:
    text = reported("a.py", a_py=[{"line": 1, "message": "x", "level": "shout"}])
    assert "the data that the job returned is invalid: zuul.file_comments" in text and "a.py:1" not in text


def test_the_history_has_so_many_of_a_build_and_so_many_bytes_of_a_buildset() -> None:
    few = {"zuul": {"file_comments": {"a.py": [{"line": n, "message": "x"} for n in range(150)], "b.py": []}}}
    long = {"zuul": {"file_comments": {"a.py": [{"line": 1, "message": "y" * 20_000}] * 9}}}
    builds = {name: Build(name, name, data=data) for name, data in (("one", few), ("two", long), ("three", few))}
    found = comments_of(BuildSet("s", builds=builds))
    assert [comment.line for comment in found["one"]["a.py"]] == list(range(100))
    assert len(found["two"]["a.py"]) == 4 and "three" not in found, "there is room for 100,000 bytes"


def test_the_work_grows_no_faster_than_the_number_of_comments() -> None:
    by_file = {file: [{"line": n, "message": "x"} for n in range(2_500)] for file in ("a.py", "c.py")}
    names = [f"lint-{number}" for number in range(40)]
    builds = {name: Build(name, name, data={"zuul": {"file_comments": by_file}}) for name in names}
    graph = FrozenGraph(tuple(FrozenJob(name=name) for name in names))
    change = Change("c", "h/p", "main", files=(*(f"{n}.py" for n in range(100_000)), "a.py"))
    lines = report_lines(BuildSet("s", graph=graph, builds=builds), [change])
    assert len(lines) == 103 and "100000 comments of lint-0, lint-1," in lines[-1]
