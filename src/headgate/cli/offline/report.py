"""What is wrong with a configuration, as JSON and as a good compiler would print it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import click

from headgate.cli.offline.reading import Loaded, Refused
from headgate.config.model import ConfigError

_HINT = re.compile(r"; (did you mean .*|known are .*|there (?:is|are) .*)$", re.DOTALL)
_MISSING = re.compile(r"'([^']+)' is not defined")
_QUOTED = re.compile(r"'([^']+)'")
_SNIPPET = re.compile(r"^[> ] +(\d+) \| ?(.*)$")
HINT_MAX_CHARS = 160
_COUNTED = ("projects", "jobs", "templates", "pipelines", "nodesets")
_COLOURS = {"error": "red", "warning": "yellow"}


def as_json(found: Loaded | Refused) -> dict[str, object]:
    """What `headgate check --json` says of a tenant."""
    return {"errors": [error_as_json(error) for error in found.errors], "counts": counts(found)}


def error_as_json(error: ConfigError) -> dict[str, object]:
    return {
        "severity": error.severity,
        "name": error.name,
        "project": error.project,
        "branch": error.branch,
        "path": error.path,
        "line": error.line,
        "message": error.text,
    }


def counts(found: Loaded | Refused) -> dict[str, int]:
    """How much there is of what; `errors` are those that are no mere warnings."""
    errors = sum(error.severity == "error" for error in found.errors)
    if isinstance(found, Refused):
        return {**dict.fromkeys(_COUNTED, 0), "errors": errors}
    layout = found.layout
    return {
        "projects": len(found.tenant.projects),
        "jobs": sum(bool(variants) for variants in layout.jobs.values()),
        "templates": len(layout.templates),
        "pipelines": len(layout.pipelines),
        "nodesets": len(layout.singles["nodeset"]),
        "errors": errors,
    }


def summary(name: str, loaded: Loaded) -> str:
    found = counts(loaded)
    errors, warnings = found["errors"], len(loaded.errors) - found["errors"]
    said = [_many(found[what], what) for what in _COUNTED]
    wrong = [_many(count, what) for count, what in ((errors, "errors"), (warnings, "warnings")) if count]
    verdict = click.style(", ".join(wrong), fg="red" if errors else "yellow", bold=True)
    return f"tenant {name}: {', '.join(said)}: {verdict if wrong else click.style('no errors', fg='green')}"


def _many(count: int, what: str) -> str:
    return f"{count:,} {what if count != 1 else what[:-1]}"


def remind(loaded: Loaded) -> None:
    """That there is more to be told than what was asked for."""
    wrong = counts(loaded)["errors"]
    if wrong:
        text = f"the configuration of tenant {loaded.tenant.name} has {_many(wrong, 'errors')}: see `headgate check`"
        click.echo(f"\n{click.style('note', fg='yellow', bold=True)}: {text}", err=True)


_STANZA = re.compile(r"- +([a-z-]+):")
_NAME = re.compile(r"(?:^ +|[{,] *)name: *([^,}\n]+)", re.MULTILINE)


def left_out(loaded: Loaded) -> dict[str, str]:
    """Name -> where it would be defined, were there not an error in its stanza: what misses it need not be mended."""
    found: dict[str, str] = {}
    for error in loaded.errors:
        text = loaded.files.get(error.project, {}).get(error.branch, {}).get(error.path, "") if error.line else ""
        lines = text.splitlines()
        first = next((n for n in range(min(error.line, len(lines)), 0, -1) if _STANZA.match(lines[n - 1])), 0)
        if not first or error.severity != "error":
            continue
        end = next((n for n in range(first, len(lines)) if _STANZA.match(lines[n])), len(lines))
        if name := _NAME.search("\n".join(lines[first - 1 : end])):
            place = f"{error.project} {error.branch} {error.path}:{first}"
            found.setdefault(name[1].strip().strip("\"'"), f"its definition at {place} is left out for its own error")
    return found


def as_text(errors: Iterable[ConfigError], left_out: Mapping[str, str] | None = None) -> Iterator[str]:
    """One block an error; the same one on several branches of a project is shown once."""
    alike: dict[tuple[str, ...], list[ConfigError]] = {}
    for error in errors:
        key = (error.project, error.path, str(error.line), error.name, error.text, error.snippet)
        alike.setdefault(key, []).append(error)
    for found in alike.values():
        yield "\n".join(_block(found[0], [e.branch for e in found[1:]], left_out or {}))


def _block(error: ConfigError, branches: Sequence[str], left_out: Mapping[str, str]) -> Iterator[str]:
    hint = _HINT.search(error.text)
    text = error.text[: hint.start()] if hint else error.text
    kind = click.style(f"{error.severity}[{error.name}]", fg=_COLOURS[error.severity], bold=True)
    yield f"{kind}: {click.style(text, bold=True)}"
    lines = [m.groups() for row in error.snippet.splitlines() if (m := _SNIPPET.match(row))]
    width = max((len(number) for number, _ in lines), default=1)
    bar = click.style(f"{'':{width}} |", fg="blue")
    place = f"{error.path}:{error.line}" if error.line else error.path
    where = " ".join(x for x in (error.project, error.branch, place) if x)
    if where:
        yield f"{'':{width}}{click.style('-->', fg='blue')} {where}"
    for number, line in lines:
        yield f"{click.style(f'{number:>{width}} |', fg='blue')} {line}"
        if int(number) == error.line:
            start, length = _span(line, text)
            yield f"{bar} {' ' * start}{click.style('^' * length, fg=_COLOURS[error.severity], bold=True)}"
    missing = _MISSING.search(text)
    elsewhere = left_out.get(missing[1]) if missing else None
    if elsewhere:
        yield f"{'':{width}} {click.style('=', fg='blue')} note: {elsewhere}"
    elif hint:
        said = " ".join(hint[1].split())
        short = said if len(said) <= HINT_MAX_CHARS else f"{said[:HINT_MAX_CHARS].rsplit(', ', 1)[0]}, …"
        yield f"{'':{width}} {click.style('=', fg='blue')} help: {short}"
    if branches:
        yield f"{'':{width}} {click.style('=', fg='blue')} the same on {', '.join(branches)}"


def _span(line: str, text: str) -> tuple[int, int]:
    """First column (from 0) and length of what to underline: a word the text quotes, else all of the line."""
    for word in _QUOTED.findall(text):
        if found := re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", line):
            return found.start(), len(word)
    bare = line.lstrip()
    return len(line) - len(bare), max(1, len(bare.rstrip()))
