"""Test that a lasting problem is logged once, and later as a reminder with a count."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable

import pytest

from headgate.cli.logs import FORGOTTEN_S, PROBLEMS_MAX, WORD_MAX, LastingProblems, cause_of


class Lines(logging.Handler):
    """Keep the lines that a log would have."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Log:
    """Provide a log whose clock the test advances."""

    def __init__(self) -> None:
        self.now_s, self.has_threads = 0.0, True
        self.waiting: list[tuple[float, Callable[[], None]]] = []
        self.out = Lines()
        self.handler = LastingProblems(self.out, lambda: self.now_s, self.wake)

    def wake(self, wait_s: float, call: Callable[[], None]) -> None:
        if not self.has_threads:
            raise RuntimeError("can't start new thread")
        self.waiting.append((self.now_s + wait_s, call))

    def write(self, template: str, *args: object, level: int = logging.WARNING) -> None:
        self.handler.handle(logging.LogRecord("headgate.test", level, "", 0, template, args, None))

    def pass_time(self, length_s: float) -> None:
        end_s = self.now_s + length_s
        while due := sorted((one for one in self.waiting if one[0] <= end_s), key=lambda one: one[0]):
            self.waiting.remove(due[0])
            self.now_s = due[0][0]
            due[0][1]()
        self.now_s = end_s

    def new_lines(self) -> list[str]:
        lines, self.out.lines = self.out.lines, []
        return lines


@pytest.fixture
def log() -> Log:
    return Log()


def test_a_lasting_problem_is_logged_once_and_then_seldom(log: Log) -> None:
    for second in range(3600):
        log.write("the store does not answer: %s; trying again in %.1f s", OSError("refused"), second / 10)
        log.pass_time(1)
    first, *reminders = log.new_lines()
    assert first == "the store does not answer: refused; trying again in 0.0 s"
    assert len(reminders) == 2 and all(one.startswith("still: the store does not answer: refused") for one in reminders)
    assert reminders[0].endswith("(59 times more in 1m 00s)")
    assert reminders[1].endswith("(600 times more in 10m 00s)")


def test_one_cause_at_many_places_is_one_line(log: Log) -> None:
    for number in range(40):
        log.write("%s: cannot be read: %s", f"project-{number}", OSError("no route to host"))
    log.pass_time(1)
    first, others = log.new_lines()
    assert first == "project-0: cannot be read: no route to host"
    assert others.startswith("project-39: cannot be read: no route to host (the same for project-1, project-2")
    assert others.endswith(" more)") and "project-0" not in others
    log.pass_time(3600)
    assert not log.new_lines(), "nothing happened since"


def test_a_cause_that_repeats_its_place_is_one_cause(log: Log) -> None:
    for name in ("api", "lib", "web"):
        log.write("local/%s cannot be read: %s", name, f"fatal: '/srv/git/{name}' is no repository")
    log.pass_time(1)
    assert [line.partition(" (the same")[2] for line in log.new_lines()] == ["", " for lib)"]


def test_another_cause_and_another_text_are_problems_of_their_own(log: Log) -> None:
    log.write("%s: cannot be read: %s", "api", OSError("refused"))
    log.write("%s: cannot be read: %s", "api", OSError("no such file"))
    log.write("%s: cannot be written: %s", "api", OSError("refused"))
    assert len(log.new_lines()) == 3


def test_a_problem_that_returns_after_a_while_is_logged_immediately(log: Log) -> None:
    log.write("%s has gone", "e1")
    log.write("%s has gone", "e1")
    log.pass_time(FORGOTTEN_S + 61)
    assert log.new_lines() == ["e1 has gone", "still: e1 has gone (once more in 1m 00s)"]
    log.write("%s has gone", "e1")
    assert log.new_lines() == ["e1 has gone"]


def test_messages_that_are_not_problems_are_always_logged(log: Log) -> None:
    for _ in range(3):
        log.write("api: %s has landed", "greet", level=logging.INFO)
    assert len(log.new_lines()) == 3


def test_nothing_is_lost_when_the_process_ends_or_too_many_problems_are_known(log: Log) -> None:
    for _ in range(5):
        log.write("a problem: %s", "a")
    for number in range(PROBLEMS_MAX):
        log.write(f"problem {number}")
    assert "still: a problem: a (4 times more in 0m 00s)" in log.new_lines()
    log.write("problem 7")
    log.handler.flush()
    assert log.new_lines() == ["still: problem 7 (once more in 0m 00s)"]


def test_names_with_signs_of_a_template_are_written_as_they_are(log: Log) -> None:
    for place in ("100%s", "50%d", "0%"):
        log.write("%s: %s", place, "full")
    log.pass_time(1)
    assert log.new_lines() == ["100%s: full", "0%: full (the same for 50%d)"]


def test_many_waits_leave_one_alarm(log: Log) -> None:
    for round in range(20):
        log.write("x: %s", "a")
        log.write("%s: y", f"p{round}")
        log.pass_time(0.5)
    log.pass_time(4000)
    assert len(log.waiting) <= 1


def test_where_no_thread_can_be_started_nobody_who_logs_is_disturbed(log: Log) -> None:
    log.has_threads = False
    for _ in range(3):
        log.write("%s has gone", "e1")
    log.pass_time(60)
    assert log.new_lines() == ["e1 has gone"]
    log.has_threads = True
    log.write("%s has gone", "e1")
    log.pass_time(1)
    assert log.new_lines() == ["still: e1 has gone (3 times more in 1m 00s)"]


@pytest.mark.long
@pytest.mark.heavy
def test_each_second_another_place_leaves_few_alarms(log: Log) -> None:
    """The alarm is a thread that waits for up to an hour."""
    most, lines = 0, list[str]()
    for second in range(6000):
        log.write("%s: cannot be read: %s", f"project-{second % 900}", OSError("refused"))
        log.write("the store does not answer: %s", OSError("gone"))
        log.pass_time(1)
        most, lines = max(most, len(log.waiting)), lines + log.new_lines()
    assert most <= 5
    assert sum(line.startswith("still: the store") for line in lines) == 3


def test_a_remembered_problem_keeps_no_object_of_its_error_alive(log: Log) -> None:
    class Body:
        """Imitate an exception that a request caused."""

    def fail() -> weakref.ref[Body]:
        body = Body()
        seen = weakref.ref(body)
        try:
            raise OSError("refused", body)
        except OSError as error:
            log.write("%s: cannot be read: %s", "api", error)
            about = type(error), error, error.__traceback__
            for _ in range(2):
                log.handler.handle(logging.LogRecord("headgate.test", logging.ERROR, "", 0, "GET %s", ("/",), about))
        return seen

    seen = fail()
    gc.collect()
    assert seen() is None
    assert log.handler.flush() is None and log.new_lines()[-1] == "still: GET / (once more in 0m 00s)"
    long = logging.LogRecord("headgate.test", logging.ERROR, "", 0, "%s: %s", ("x " * 10**6, "y" * 10**6), None)
    cause, place = cause_of(long)
    assert len(cause.text) <= WORD_MAX and len(place) <= WORD_MAX, "texts of any length are not kept, nor searched"


@pytest.mark.parametrize(
    "broken", [("%d builds", "many"), ("%s: %s", "alone"), ("%s has gone", type("", (), {"__str__": 0})())]
)
def test_a_call_that_cannot_be_written_is_the_other_handlers_and_wakes_nobody(
    log: Log, broken: tuple[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = list[str]()
    monkeypatch.setattr(log.out, "emit", lambda record: failed.append(record.msg))
    for _ in range(3):
        log.write(*broken)
    for _ in range(3):
        for wait_s, call in log.waiting[:]:
            log.now_s = wait_s
            log.waiting.remove((wait_s, call))
            call()
    assert failed == [broken[0]] * 3 and not log.waiting


def test_a_line_logged_while_another_is_written_is_not_lost(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finalizer may log at any moment."""

    def emit(record: logging.LogRecord) -> None:
        log.out.lines.append(record.getMessage())
        if record.getMessage().startswith("still"):
            log.write(f"a finalizer, {len(log.out.lines)}")

    for name in ("a", "a", "b", "b"):
        log.write(f"{name} has gone")
    monkeypatch.setattr(log.out, "emit", emit)
    log.pass_time(60)
    log.write("a has gone")
    log.handler.flush()
    assert [line.partition(" (")[0] for line in log.new_lines()] == [
        "a has gone", "b has gone", "still: a has gone", "a finalizer, 3", "still: b has gone", "a finalizer, 5",
        "still: a has gone", "a finalizer, 7",
    ]  # fmt: skip
