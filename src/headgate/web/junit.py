"""Read the test results that jobs write as JUnit XML, within bounds, whatever the files contain."""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.parsers import expat

import msgspec

CASES_MAX = 50_000
"""Limit on the cases of one file; a file with more is not taken for a test report."""
SHOWN_MAX = 500
"""Limit on the cases that are shown one by one."""
TEXT_MAX_CHARS = 4_000
NAME_MAX_CHARS = 500
DEPTH_MAX = 50
_WORSE = ("failed", "error")


class Malformed(ValueError):
    """Report that a file is not JUnit XML, or exceeds a bound."""


class CaseShape(msgspec.Struct, frozen=True, kw_only=True):
    """Describe one test as the job reported it."""

    name: str
    suite: str
    """The class of the test, or the suite that contains it."""
    file: str
    """Log file that reports it."""
    status: str
    """passed | failed | error | skipped"""
    seconds: float | None
    message: str
    """The message of a test that did not pass."""


@dataclass(slots=True)
class JUnitReader:
    """Read one file in pieces. Document type declarations are rejected, so no entity expands."""

    file: str
    cases: list[CaseShape] = field(default_factory=list)
    """The cases to show: all that failed, and others while there are fewer than `SHOWN_MAX`; reduced by `worst` when
    they become too many.
    """
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("passed", "failed", "error", "skipped"), 0))
    seconds: float = 0.0
    _parser: expat.XMLParserType = field(init=False)
    _depth: int = 0
    _suites: list[str] = field(default_factory=list)
    _case: dict[str, str] | None = None
    _status: str = "passed"
    _texts: list[str] = field(default_factory=list)
    _length: int = 0
    _in_outcome: bool = False
    _rooted: bool = False

    def __post_init__(self) -> None:
        self._parser = parser = expat.ParserCreate()
        # Without declarations there are no entities, so no file of a kilobyte grows to gigabytes.
        parser.StartDoctypeDeclHandler = self._refuse
        parser.EntityDeclHandler = self._refuse
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text

    def feed(self, data: bytes, *, final: bool = False) -> None:
        """Raise Malformed."""
        try:
            self._parser.Parse(data, final)
        except expat.ExpatError as error:
            raise Malformed(f"{self.file}: {error}") from error

    def _refuse(self, *_: object) -> None:
        raise Malformed(f"{self.file}: it declares a document type, which is not read")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise Malformed(f"{self.file}: more than {DEPTH_MAX} elements are in each other")
        if not self._rooted and name not in ("testsuites", "testsuite"):
            raise Malformed(f"{self.file}: it begins with <{name[:NAME_MAX_CHARS]}>, and not with <testsuites>")
        self._rooted = True
        if name == "testsuite":
            self._suites.append(attributes.get("name", ""))
        elif name == "testcase":
            self._case, self._status, self._texts, self._length = attributes, "passed", [], 0
        elif self._case is not None and name in ("failure", "error", "skipped"):
            self._status = {"failure": "failed"}.get(name, name)
            self._in_outcome = True
            self._text(attributes.get("message", "") + "\n")

    def _text(self, text: str) -> None:
        if self._in_outcome and self._length < TEXT_MAX_CHARS:
            self._texts.append(text[: TEXT_MAX_CHARS - self._length])
            self._length += len(self._texts[-1])

    def _end(self, name: str) -> None:
        self._depth -= 1
        if name == "testsuite" and self._suites:
            self._suites.pop()
        elif name in ("failure", "error", "skipped"):
            self._in_outcome = False
        elif name == "testcase" and self._case is not None:
            self._keep(self._case)
            self._case = None

    def _keep(self, case: dict[str, str]) -> None:
        self.counts[self._status] += 1
        if sum(self.counts.values()) > CASES_MAX:
            raise Malformed(f"{self.file}: more than {CASES_MAX} tests")
        seconds = _number(case.get("time", ""))
        self.seconds += seconds or 0.0
        if self._status not in _WORSE and len(self.cases) >= SHOWN_MAX:
            return
        found = CaseShape(
            name=case.get("name", "")[:NAME_MAX_CHARS],
            suite=(case.get("classname") or (self._suites[-1] if self._suites else ""))[:NAME_MAX_CHARS],
            file=self.file,
            status=self._status,
            seconds=seconds,
            message="".join(self._texts).strip(),
        )
        self.cases.append(found)
        # Reduced only at twice the limit, so that sorting costs little for each case.
        if len(self.cases) > 2 * SHOWN_MAX:
            self.cases = worst(self.cases)


def worst(cases: list[CaseShape]) -> list[CaseShape]:
    """Return the cases that are shown one by one: those that did not pass, then skipped ones, then the slowest."""
    rank = {"failed": 0, "error": 0, "skipped": 1, "passed": 2}
    return sorted(cases, key=lambda one: (rank[one.status], -(one.seconds or 0.0)))[:SHOWN_MAX]


def _number(text: str) -> float | None:
    """Return the seconds that a text states, with or without commas; None if it states no valid number."""
    try:
        found = float(text.replace(",", "")[:30])
    except ValueError:
        return None
    return found if 0 <= found < 1e9 else None
