"""Test that results of tests are read from any files of jobs."""

from __future__ import annotations

import pytest

from headgate.web.routes.testresults import (
    CASES_MAX,
    NAME_MAX_CHARS,
    SHOWN_MAX,
    TEXT_MAX_CHARS,
    CaseShape,
    JUnitReader,
    Malformed,
    worst,
)

REPORT = b"""<?xml version="1.0"?>
<testsuites><testsuite name="api" tests="4">
<testcase classname="api.Test" name="passes" time="0.5"/>
<testcase name="fails" time="1,000.25"><failure message="1 != 2">at line 3 &lt;b&gt;</failure>
<system-out>noise</system-out></testcase>
<testcase name="breaks"><error>no such table</error></testcase>
<testcase name="waits"><skipped message="not today"/></testcase>
</testsuite></testsuites>"""


def read(data: bytes, piece: int = 7) -> JUnitReader:
    reader = JUnitReader("junit.xml")
    for start in range(0, len(data), piece):
        reader.feed(data[start : start + piece])
    reader.feed(b"", final=True)
    return reader


def test_results_are_counted_and_tests_that_did_not_pass_come_first() -> None:
    found = read(REPORT)
    assert found.counts == {"passed": 1, "failed": 1, "error": 1, "skipped": 1}
    assert found.seconds == 1000.75
    fails, breaks, waits, passes = worst(found.cases)
    assert fails == CaseShape(
        name="fails", suite="api", file="junit.xml", status="failed", seconds=1000.25, message="1 != 2\nat line 3 <b>"
    )
    assert (breaks.message, waits.message, passes.suite) == ("no such table", "not today", "api.Test")


BOMB = b"""<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]><testsuite name="&b;"/>"""
OUTSIDE = b"""<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]><testsuite><testcase name="&f;"/></testsuite>"""


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (BOMB, "document type declarations"),
        (OUTSIDE, "document type declarations"),
        (b"<testsuite>" * 60, "nested more than"),
        (b"<html/>", "the root element is <html>"),
        (b"<testsuite><testcase name='a'>", "no element found"),
        (b"\x00\xff not xml", "junit.xml: "),
        (b"", "no element found"),
    ],
)
def test_an_invalid_report_is_an_error_that_names_its_defect(data: bytes, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        read(data, 1_000)


@pytest.mark.heavy
def test_a_report_has_bounds() -> None:
    bad = b"<testcase name='%s'><failure>%s</failure></testcase>" % (b"n" * 2_000, b"x" * 100_000)
    found = read(b"<testsuite>" + bad * 3 + b"<testcase name='t'/>" * 5_000 + b"</testsuite>", 65_536)
    assert sum(found.counts.values()) == 5_003 and len(found.cases) <= 2 * SHOWN_MAX
    assert {len(one.message) for one in worst(found.cases)[:3]} == {TEXT_MAX_CHARS - 1}
    assert {len(one.name) for one in worst(found.cases)[:3]} == {NAME_MAX_CHARS}
    with pytest.raises(Malformed, match="more than"):
        read(b"<testsuite>" + b"<testcase/>" * (CASES_MAX + 1), 65_536)
    for time in (b"1e999", b"nan", b"-5", b"soon"):
        assert read(b"<testsuite><testcase time='%s'/></testsuite>" % time).cases[0].seconds is None
