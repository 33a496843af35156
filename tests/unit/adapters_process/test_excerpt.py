"""Test which lines of a log a report quotes for a failure."""

from __future__ import annotations

import pytest

from headgate.adapters.process.joblog import EXCERPT_LINE_MAX_CHARS, EXCERPT_LINES_MAX, Excerpt

UNITTEST = """test_perimeter (test_api.Api.test_perimeter) ... ERROR
======================================================================
ERROR: test_perimeter (test_api.Api.test_perimeter)
----------------------------------------------------------------------
Traceback (most recent call last):
  File "test_api.py", line 11, in test_perimeter
    self.assertEqual(api.perimeter(2, 3), 10)
AttributeError: module 'core' has no attribute 'add'

Ran 2 tests in 0.001s

FAILED (errors=1)
"""
PYTEST = """    def test_sum():
>       assert add(1, 1) == 3
E       assert 2 == 3
E        +  where 2 = add(1, 1)
FAILED tests/test_sum.py::test_sum - assert 2 == 3
"""
GCC = """cc -c a.c
a.c:3:5: warning: unused variable 'x'
a.c:4:9: error: expected ';' before 'return'
make: *** [Makefile:2: a.o] Error 1
"""
ANSIBLE = """TASK [Try]
node | FAILED (ignored)
TASK [Fetch it]
node | fatal: repository 'x' does not exist
"""


def shown(text: str) -> list[str]:
    excerpt = Excerpt()
    excerpt.begin()
    excerpt.hear(text.encode().splitlines())
    excerpt.settle()
    return excerpt.text().splitlines()


@pytest.mark.parametrize(
    ("log", "reason", "noise"),
    [
        (UNITTEST, "AttributeError: module 'core' has no attribute 'add'", "Traceback"),
        (PYTEST, "E       assert 2 == 3", "def test_sum"),
        (GCC, "a.c:4:9: error: expected ';' before 'return'", "warning"),
        (ANSIBLE, "node | fatal: repository 'x' does not exist", "ignored"),
        ("compiling\n\nno space left\n   \n", "no space left", "nothing of the kind"),
    ],
)
def test_the_reason_is_shown_and_little_else(log: str, reason: str, noise: str) -> None:
    lines = shown(log)
    assert reason in lines and len(lines) <= EXCERPT_LINES_MAX
    assert not any(noise in line for line in lines)


def test_the_first_errors_are_shown_and_the_last() -> None:
    assert shown("".join(f"x.c:{n}: error: {n}\n" for n in range(1000)))[-2:] == [
        "x.c:2: error: 2",
        "x.c:999: error: 999",
    ]


def test_only_the_first_playbook_that_failed_is_shown() -> None:
    excerpt = Excerpt()
    for lines, fails in ([b"ERROR: of a try that was good"], False), ([b"ERROR: why"], True), ([b"ERROR: late"], True):
        excerpt.begin()
        excerpt.hear(lines)
        if fails:
            excerpt.settle()
    assert excerpt.text() == "ERROR: why"


def test_nothing_is_shown_of_a_build_that_passed() -> None:
    excerpt = Excerpt()
    excerpt.begin()
    excerpt.hear([b"ERROR: of a try that was good"])
    assert excerpt.text() == ""


def test_no_line_of_an_excerpt_is_long_or_controls_a_terminal() -> None:
    (line,) = shown("ERROR: \x1b[31m\u202eevil\x07" + "x" * 5_000)
    assert len(line) < EXCERPT_LINE_MAX_CHARS + 40 and line.isprintable() and "\u202e" not in line
