"""The program's own log: lines for people, or a JSON object per line; each says what it is about."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import msgspec

from headgate.base.tasks import subject
from headgate.base.texts import visible
from headgate.cli.lastingproblems import LastingProblems

_NOISY = ("watchfiles", "uvicorn.access", "asyncio", "httpx", "httpcore")
_QUIET = "opentelemetry"
"""Logger that warns at each attempt when a collector does not answer, and again when it gives up."""


NAMES = ("tenant", "pipeline", "change", "job")
"""Names that people use for things; the other fields of a record's subject are ids."""


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
