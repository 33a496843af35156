"""Write the program's own log as text or JSON; a lasting problem appears once, and then in rare reminders."""

from __future__ import annotations

import contextlib
import copy
import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from headgate.base.tasks import subject
from headgate.base.texts import listed, visible
from headgate.gate.builds.report import duration

GROUPED_S = 1.0
"""Seconds for which places with the same cause are collected before one line names them."""
REMINDERS_S = (60.0, 600.0, 3600.0)
"""Seconds between the log lines of a lasting problem; from the third reminder on, the last interval repeats."""
FORGOTTEN_S = 900.0
"""Seconds without the problem after which it counts as new when it returns."""
NEVER_S = float("inf")
PROBLEMS_MAX = 1000
PLACES_MAX = 1000
"""Limit on the places of one problem that are distinguished."""
WORD_MAX = 1000
"""Characters of a place or a cause that are compared to distinguish problems."""
NAMES = ("tenant", "pipeline", "change", "job")
"""Names that people use for things; the other fields of a record's subject are ids."""
_NOISY = ("watchfiles", "uvicorn.access", "asyncio", "httpx", "httpcore")
_QUIET = "opentelemetry"
"""Logger that warns at each attempt when a collector does not answer, and again when it gives up."""


class ProblemCause(NamedTuple):
    """Identify a problem by the text of the code that logs and by what went wrong, without its place and any number."""

    logger: str
    template: str
    text: str


@dataclass(slots=True)
class _RepeatedRecord:
    """Count the records of one problem that were held back since its last line."""

    record: logging.LogRecord
    place: str
    seen_s: float
    line_s: float
    places: set[str]
    repeats: int = 0
    others: dict[str, None] = field(default_factory=dict)
    reminders: int = 0
    due_s: float = NEVER_S


def cause_of(record: logging.LogRecord) -> tuple[ProblemCause, str]:
    """Return the cause of a problem and its place, such as a project: the arguments of the record before the cause."""
    given = record.args if isinstance(record.args, tuple) else ()
    # Numbers are left out: a count or a delay differs each time.
    words = [str(one)[:WORD_MAX] for one in given if not isinstance(one, int | float)]
    error = record.exc_info[1] if record.exc_info else None
    text = f"{type(error).__name__}: {error}"[:WORD_MAX] if error is not None else words.pop() if words else ""
    place = " ".join(words) or next(reversed(getattr(record, "subject", {}).values()), "")
    names = {re.escape(one) for one in re.split(r"\W+", place) if one}
    if names:  # a cause often repeats its place, such as the address of a repository
        text = re.sub(rf"\b(?:{'|'.join(sorted(names))})\b", "*", text)
    return ProblemCause(record.name, str(record.msg), text), place


class LastingProblems(logging.Handler):
    """Pass each record to another handler, but repeated warnings and errors as one line: the first in full; after a
    second, one line with all other places of the same cause; then, rarely, one that begins with `still` and has a
    count.

    `clock_s` returns seconds from any origin; `wake` calls a function after a number of seconds.
    """

    def __init__(
        self,
        out: logging.Handler,
        clock_s: Callable[[], float] = time.monotonic,
        wake: Callable[[float, Callable[[], None]], None] | None = None,
    ) -> None:
        super().__init__()
        self._out, self._clock_s, self._wake = out, clock_s, wake or _in_thread
        self._lasting: dict[ProblemCause, _RepeatedRecord] = {}
        self._alarms: set[float] = set()
        """Times at which functions given to `wake` will be called."""
        # The handler's own lock, which `handle` holds around `emit`: alarms, which come in other threads, take it, too.
        self._guarded = self.lock or threading.RLock()

    def emit(self, record: logging.LogRecord) -> None:
        """Pass on one record, or count it."""
        if record.levelno < logging.WARNING:
            self._out.handle(record)
            return
        try:
            (cause, place), bare = cause_of(record), _without_traceback(record)
        except Exception:  # the record itself is faulty; the other handler reports that
            self._out.handle(record)
            return
        now_s = self._clock_s()
        # Taken out and put in again: the order of the dictionary is that of last use, so that the oldest can be
        # dropped.
        known = self._lasting.pop(cause, None)
        if known is None or now_s - known.seen_s > FORGOTTEN_S:
            if known is not None:
                self._tell(known, now_s)
            known = _RepeatedRecord(bare, place, now_s, now_s, {place})
            self._out.handle(record)
            self._lasting[cause] = known
        else:
            self._lasting[cause] = known  # at the end: the first one is the one not seen for the longest time
            self._count(known, bare, place, now_s)
        if len(self._lasting) > PROBLEMS_MAX:
            # Bounded: texts of others, such as names of refs, could otherwise fill the memory with problems.
            self._tell(self._lasting.pop(next(iter(self._lasting))), now_s)

    def flush(self) -> None:
        """Write lines for everything that is held back."""
        with self._guarded:
            for one in list(self._lasting.values()):  # a finalizer may log at any moment, in this thread, too
                self._tell(one, self._clock_s())
        self._out.flush()

    def _count(self, known: _RepeatedRecord, record: logging.LogRecord, place: str, now_s: float) -> None:
        known.record, known.place, known.seen_s = record, place, now_s
        # Beyond the limit a place counts as a repetition: the sets must not grow without end.
        if place not in known.places and len(known.places) < PLACES_MAX:
            known.places.add(place)
            known.others[place] = None
            due_s = now_s + GROUPED_S
        else:
            known.repeats += 1
            due_s = known.line_s + REMINDERS_S[min(known.reminders, len(REMINDERS_S) - 1)]
        known.due_s = min(known.due_s, due_s)
        self._arm(now_s)

    def _arm(self, now_s: float) -> None:
        due_s = min((one.due_s for one in list(self._lasting.values())), default=NEVER_S)
        # An alarm that is due earlier will look at this one, too, and set the next.
        if due_s < min(self._alarms, default=NEVER_S):
            with contextlib.suppress(RuntimeError):  # there are too many threads, or the process is ending
                self._wake(max(0.0, due_s - now_s), lambda: self._look(due_s))
                self._alarms.add(due_s)

    def _look(self, armed_s: float) -> None:
        with self._guarded:
            now_s = self._clock_s()
            self._alarms.discard(armed_s)
            for one in list(self._lasting.values()):
                if one.due_s <= now_s:
                    self._tell(one, now_s)
            self._arm(now_s)

    def _tell(self, known: _RepeatedRecord, now_s: float) -> None:
        """Write one line for all held-back records of a problem."""
        text, place = known.record.msg, known.place
        notes = [f"the same for {listed(others)}"] if (others := [one for one in known.others if one != place]) else []
        if known.repeats:
            text = f"still: {text}"
            times = "once" if known.repeats == 1 else f"{known.repeats:,} times"
            notes.append(f"{times} more in {duration(int((now_s - known.line_s) * 1000))}")
            known.reminders += 1
        if known.repeats or known.others:
            # A copy: the record itself is the text of later lines.
            summary = copy.copy(known.record)
            summary.msg = f"{text} ({'; '.join(notes)})" if notes else text
            self._out.handle(summary)
        known.repeats, known.line_s, known.due_s = 0, now_s, NEVER_S
        known.others.clear()


def _without_traceback(record: logging.LogRecord) -> logging.LogRecord:
    """Return a copy of the record with only its text: an error would keep alive everything in its traceback."""
    bare = copy.copy(record)
    bare.msg, bare.args, bare.exc_info = record.getMessage(), (), None
    return bare


def _in_thread(wait_s: float, call: Callable[[], None]) -> None:
    """Call a function later, in a thread that does not keep the process alive."""
    timer = threading.Timer(wait_s, call)
    timer.daemon = True
    timer.start()


class Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_about(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%d %H:%M:%S")
        message = visible(record.getMessage()).replace("\n", "\n    ")  # text of others cannot begin a line
        line = f"{at},{int(record.msecs):03} {record.levelname:7} {record.name}: {message}"
        if about := _worth_saying(record, line):
            line += f" [{' '.join(f'{name}={value}' for name, value in about.items())}]"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _worth_saying(record: logging.LogRecord, line: str) -> dict[str, str]:
    """Return the subject's fields that the line does not contain; at level info without ids."""
    # People see each id once: most messages contain the change or the job already.
    words = {word.strip(".,:;") for word in line.split()}
    every = record.levelno != logging.INFO
    return {k: v for k, v in _about(record).items() if v not in words and (every or k in NAMES)}


def _about(record: logging.LogRecord) -> dict[str, str]:
    return dict(getattr(record, "subject", {}))


class _Subject(logging.Filter):
    """Record the subject of the code that logs: a line may be written later, in another context."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.subject = subject()
        return True


def set_up(form: str = "text", level: str = "info") -> None:
    """Set up the log of the whole process on standard error. `form` is text or json; `level` is a name."""
    out = logging.StreamHandler()
    out.setFormatter(Json() if form == "json" else TextFormatter())
    lasting = LastingProblems(out)
    # On the handler, not on a logger: filters of loggers do not see the records of their children.
    lasting.addFilter(_Subject())
    # Libraries may have set up logging when they were imported; `force` replaces that.
    logging.basicConfig(level=level.upper(), handlers=[lasting], force=True)
    for noisy in _NOISY:
        # Never below the level of the root, so that `level = error` silences these, too.
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))
    logging.getLogger(_QUIET).setLevel(logging.ERROR)
