"""The program's own log: lines for people, or one JSON object a line; each says what it is about."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import msgspec

from headgate.base.subject import subject
from headgate.base.texts import visible
from headgate.cli.lastingproblems import LastingProblems

_NOISY = ("watchfiles", "uvicorn.access", "asyncio", "httpx", "httpcore")
_QUIET = "opentelemetry"
"""Says at each try that a collector does not answer, and once more when it gives up."""


NAMES = ("tenant", "pipeline", "change", "job")
"""What people call things by."""


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
        message = visible(record.getMessage()).replace("\n", "\n    ")  # what others wrote begins no line
        line = f"{at},{int(record.msecs):03} {record.levelname:7} {record.name}: {message}"
        if about := _worth_saying(record, line):
            line += f" [{' '.join(f'{name}={value}' for name, value in about.items())}]"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _worth_saying(record: logging.LogRecord, line: str) -> dict[str, str]:
    """Return what the line does not say itself; ids only where something is wrong, or somebody wants to know it all."""
    words = {word.strip(".,:;") for word in line.split()}
    every = record.levelno != logging.INFO
    return {k: v for k, v in _about(record).items() if v not in words and (every or k in NAMES)}


def _about(record: logging.LogRecord) -> dict[str, str]:
    return dict(getattr(record, "subject", {}))


class _Subject(logging.Filter):
    """Note what the code that logs is about; it is in another context when the line is written elsewhere."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.subject = subject()
        return True


def set_up(form: str = "text", level: str = "info") -> None:
    """Set up the log of the whole process on standard error. `form` is text or json; `level` is a name."""
    out = logging.StreamHandler()
    out.setFormatter(Json() if form == "json" else TextFormatter())
    lasting = LastingProblems(out)
    lasting.addFilter(_Subject())
    logging.basicConfig(level=level.upper(), handlers=[lasting], force=True)
    for noisy in _NOISY:
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))
    logging.getLogger(_QUIET).setLevel(logging.ERROR)
