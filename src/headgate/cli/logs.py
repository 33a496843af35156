"""Write the program's own log as text or JSON; log a lasting problem once, and then only in rare reminders."""

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
"""Seconds during which places with the same cause are collected, before one line names them all."""
REMINDERS_S = (60.0, 600.0, 3600.0)
"""Seconds between the log lines of a lasting problem; from the third reminder on, the last interval repeats."""
FORGOTTEN_S = 900.0
"""Seconds without an occurrence after which a returning problem counts as new."""
NEVER_S = float("inf")
PROBLEMS_MAX = 1000
PLACES_MAX = 1000
"""Limit on the places that are distinguished for one problem."""
WORD_MAX = 1000
"""Characters of a place or a cause that count when problems are compared."""
NAMES = ("tenant", "pipeline", "change", "job")
"""Fields of a record's subject that hold display names; all other fields are ids."""
_NOISY = ("watchfiles", "uvicorn.access", "asyncio", "httpx", "httpcore")
_QUIET = "opentelemetry"
"""Logger that warns at each failed attempt to reach a collector, and again when it gives up."""


class ProblemCause(NamedTuple):
    """Identify a problem by its log template and by what went wrong, without its place and any numbers."""

    logger: str
    template: str
    text: str


@dataclass(slots=True)
class _RepeatedRecord:
    """Count the records of one problem that were suppressed since its last line."""

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
    """Return the cause of a problem and its place, such as a project. The place is made of the log arguments before
    the cause."""
    given = record.args if isinstance(record.args, tuple) else ()
    # Leave out numbers: a count or a delay differs each time.
    words = [str(one)[:WORD_MAX] for one in given if not isinstance(one, int | float)]
    error = record.exc_info[1] if record.exc_info else None
    text = f"{type(error).__name__}: {error}"[:WORD_MAX] if error is not None else words.pop() if words else ""
    place = " ".join(words) or next(reversed(getattr(record, "subject", {}).values()), "")
    names = {re.escape(one) for one in re.split(r"\W+", place) if one}
    # A cause often repeats its place, such as the URL of a repository; mask it, so that places share one cause.
    if names:
        text = re.sub(rf"\b(?:{'|'.join(sorted(names))})\b", "*", text)
    return ProblemCause(record.name, str(record.msg), text), place


class LastingProblems(logging.Handler):
    """Pass records to another handler, and summarise repeated warnings and errors: pass the first one in full; after a
    second, write one line with all other places of the same cause; then, rarely, write a line that begins with `still`
    and has a count.

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
        # `handle` holds the handler's own lock around `emit`; alarms run in other threads and must take the same lock.
        self._guarded = self.lock or threading.RLock()

    def emit(self, record: logging.LogRecord) -> None:
        """Pass on one record, or count it."""
        if record.levelno < logging.WARNING:
            self._out.handle(record)
            return
        try:
            (cause, place), bare = cause_of(record), _without_traceback(record)
        except Exception:  # the record's arguments do not fit its template; the other handler reports that
            self._out.handle(record)
            return
        now_s = self._clock_s()
        # Remove and re-insert: the dictionary is then ordered by last use, and its first entry is the one to drop.
        known = self._lasting.pop(cause, None)
        if known is None or now_s - known.seen_s > FORGOTTEN_S:
            if known is not None:
                self._tell(known, now_s)
            known = _RepeatedRecord(bare, place, now_s, now_s, {place})
            self._out.handle(record)
            self._lasting[cause] = known
        else:
            self._lasting[cause] = known
            self._count(known, bare, place, now_s)
        if len(self._lasting) > PROBLEMS_MAX:
            # Untrusted texts, such as ref names, could otherwise fill the memory with ever new problems.
            self._tell(self._lasting.pop(next(iter(self._lasting))), now_s)

    def flush(self) -> None:
        """Write a line for each problem with suppressed records."""
        with self._guarded:
            # Iterate over a copy: a finalizer may log in this thread at any moment and change the dictionary.
            for one in list(self._lasting.values()):
                self._tell(one, self._clock_s())
        self._out.flush()

    def _count(self, known: _RepeatedRecord, record: logging.LogRecord, place: str, now_s: float) -> None:
        known.record, known.place, known.seen_s = record, place, now_s
        # Beyond the limit, count a new place as a repetition, so that the sets stay bounded.
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
        # An earlier alarm already covers this: when it fires, it sets the next one.
        if due_s < min(self._alarms, default=NEVER_S):
            with contextlib.suppress(RuntimeError):  # no more threads can start, or the process is ending
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
        """Write one line for all suppressed records of a problem."""
        text, place = known.record.msg, known.place
        notes = [f"the same for {listed(others)}"] if (others := [one for one in known.others if one != place]) else []
        if known.repeats:
            text = f"still: {text}"
            times = "once" if known.repeats == 1 else f"{known.repeats:,} times"
            notes.append(f"{times} more in {duration(int((now_s - known.line_s) * 1000))}")
            known.reminders += 1
        if known.repeats or known.others:
            # Change a copy: later lines start from the same record.
            summary = copy.copy(known.record)
            summary.msg = f"{text} ({'; '.join(notes)})" if notes else text
            self._out.handle(summary)
        known.repeats, known.line_s, known.due_s = 0, now_s, NEVER_S
        known.others.clear()


def _without_traceback(record: logging.LogRecord) -> logging.LogRecord:
    """Return a copy of the record with only its text: a stored error would keep its traceback's frames in memory."""
    bare = copy.copy(record)
    bare.msg, bare.args, bare.exc_info = record.getMessage(), (), None
    return bare


def _in_thread(wait_s: float, call: Callable[[], None]) -> None:
    """Call a function later, in a thread that does not keep the process running."""
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
        # Indent further lines, so that untrusted text cannot forge a log line.
        message = visible(record.getMessage()).replace("\n", "\n    ")
        line = f"{at},{int(record.msecs):03} {record.levelname:7} {record.name}: {message}"
        if about := _worth_saying(record, line):
            line += f" [{' '.join(f'{name}={value}' for name, value in about.items())}]"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _worth_saying(record: logging.LogRecord, line: str) -> dict[str, str]:
    """Return the subject's fields that the line does not already contain; at level info, leave out ids."""
    # Most messages already contain the change or the job; do not repeat it.
    words = {word.strip(".,:;") for word in line.split()}
    every = record.levelno != logging.INFO
    return {k: v for k, v in _about(record).items() if v not in words and (every or k in NAMES)}


def _about(record: logging.LogRecord) -> dict[str, str]:
    return dict(getattr(record, "subject", {}))


class _Subject(logging.Filter):
    """Attach the current subject to each record: its line may be written later, in another context."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.subject = subject()
        return True


def set_up(form: str = "text", level: str = "info") -> None:
    """Set up the process's log on standard error. `form` is text or json; `level` is a name."""
    out = logging.StreamHandler()
    out.setFormatter(Json() if form == "json" else TextFormatter())
    lasting = LastingProblems(out)
    # Add the filter to the handler, not to a logger: a logger's filters do not see records of its children.
    lasting.addFilter(_Subject())
    # `force` replaces handlers that libraries may have installed when they were imported.
    logging.basicConfig(level=level.upper(), handlers=[lasting], force=True)
    for noisy in _NOISY:
        # Never more verbose than the root logger, so that `level = error` silences these, too.
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))
    logging.getLogger(_QUIET).setLevel(logging.ERROR)
