"""Format the errors of a configuration, as JSON or like the messages of a compiler."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from headgate.base.texts import line as one_line
from headgate.base.texts import listed, visible
from headgate.cli.offline.reader import LoadedTenant, RefusedTenant
from headgate.cli.terminal.say import say, style
from headgate.config.check.findings import Cause, CheckedGraph
from headgate.config.explain.marks import Extent, in_line
from headgate.config.model import ConfigError

_SHOWN = re.compile(r"[^\t]")
_SNIPPET = re.compile(r"^[> ] +(\d+) \| ?(.*)$")
HINT_MAX_CHARS = 160
FOLLOWING_MAX = 3
"""Maximum number of consequences of a cause to list; of further ones, the text shows only the number."""
_COUNTED = ("projects", "jobs", "templates", "pipelines", "nodesets")
_COLOURS = {"error": "red", "warning": "yellow"}


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


def counts(found: LoadedTenant | RefusedTenant) -> dict[str, int]:
    """Return the numbers of projects, jobs, and so on; `errors` does not count warnings."""
    errors = sum(error.severity == "error" for error in found.errors)
    if isinstance(found, RefusedTenant):
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


def summary(name: str, loaded: LoadedTenant, wrong: Sequence[ConfigError], causes: int) -> str:
    """Summarise a tenant: its contents, and the numbers of its errors and of their causes."""
    found = counts(loaded)
    errors = sum(error.severity == "error" for error in wrong)
    contents = [_many(found[what], what) for what in _COUNTED]
    both = [_many(count, what) for count, what in ((errors, "errors"), (len(wrong) - errors, "warnings")) if count]
    verdict = style(", ".join(both), fg="red" if errors else "yellow", bold=True)
    of = f", of {_many(causes, 'causes')}" if causes != len(wrong) else ""
    return f"tenant {name}: {', '.join(contents)}: {f'{verdict}{of}' if both else style('no errors', fg='green')}"


def _many(count: int, what: str) -> str:
    return f"{count:,} {what if count != 1 else what[:-1]}"


def remind(loaded: LoadedTenant) -> None:
    """Print a reminder if the tenant's configuration has errors."""
    wrong = counts(loaded)["errors"]
    if wrong:
        text = f"the configuration of tenant {loaded.tenant.name} has {_many(wrong, 'errors')}: see `headgate check`"
        say(f"\n{style('note', fg='yellow', bold=True)}: {text}", err=True)


def as_text(errors: Iterable[ConfigError]) -> Iterator[str]:
    """Yield a block for each error; show an error that occurs on several branches of a project only once."""
    alike: dict[tuple[str, ...], list[ConfigError]] = {}
    for error in errors:
        # The snippet is part of the key: branches with another text on that line have another mistake.
        key = (error.project, error.path, str(error.line), error.name, error.text, error.snippet)
        alike.setdefault(key, []).append(error)
    for first, *others in alike.values():
        yield block(first, [("", same_on(others))] if others else [])


def same_on(errors: Sequence[ConfigError]) -> str:
    return f"the same on {listed([error.branch for error in errors])}"


def place(error: ConfigError) -> str:
    """Return `project branch path:line`, without parts that the error lacks."""
    where = f"{error.path}:{error.line}" if error.line else error.path
    return one_line(" ".join(x for x in (error.project, error.branch, where) if x))


def block(error: ConfigError, notes: Sequence[tuple[str, str]] = (), extent: Extent | None = None) -> str:
    """Return the text of an error: its message, the lines that contain it, a hint, and `notes`, pairs of kind and
    text."""
    return "\n".join(_rows(error, notes, extent))


def _rows(error: ConfigError, notes: Sequence[tuple[str, str]], extent: Extent | None) -> Iterator[str]:
    text = visible(error.problem)
    kind = style(f"{error.severity}[{error.name}]", fg=_COLOURS[error.severity], bold=True)
    yield f"{kind}: {style(text, bold=True)}"
    # Rows of a snippet look like `>  12 | text`. `visible` replaces control characters, which could affect the
    # terminal.
    lines = [m.groups() for row in visible(error.snippet).splitlines() if (m := _SNIPPET.match(row))]
    width = max((len(number) for number, _ in lines), default=1)
    bar = style(f"{'':{width}} |", fg="blue")
    if where := place(error):
        yield f"{'':{width}}{style('-->', fg='blue')} {where}"
    for number, line in lines:
        yield f"{style(f'{number:>{width}} |', fg='blue')} {line}"
        if int(number) == error.line:
            # An extent that continues on the next line, or beyond the shown text, cannot be underlined.
            exact = extent is not None and extent.end_line == extent.line and extent.end_column <= len(line) + 1
            start, end = (extent.column - 1, extent.end_column - 1) if extent and exact else in_line(line, text)
            mark = style("^" * max(1, end - start), fg=_COLOURS[error.severity], bold=True)
            # Copy tabs, so that the mark aligns with the text at any tab width.
            yield f"{bar} {_SHOWN.sub(' ', line[:start])}{mark}"
    help_rows = [("help", _help(error.hint))] if error.hint else []
    for label, note in (*help_rows, *notes):
        begin = f"{label}: " if label else ""
        yield f"{'':{width}} {style('=', fg='blue')} {begin}{visible(note)}"


def _help(hint: str) -> str:
    text = " ".join(hint.split())
    return text if len(text) <= HINT_MAX_CHARS else f"{text[:HINT_MAX_CHARS].rsplit(', ', 1)[0]}, …"


def notes(cause: Cause) -> Iterator[tuple[str, str]]:
    """Yield notes, pairs of kind and text, about the consequences of a cause."""
    if cause.alike:
        yield "", same_on(cause.alike)
    if cause.also:
        yield "", f"also missing at {listed([place(error) for error in cause.also], FOLLOWING_MAX)}"
    for error in cause.follow[:FOLLOWING_MAX]:
        # Drop hints of consequences: these disappear together with their cause.
        yield "so", f"{place(error)}: {error.problem}"
    if (more := len(cause.follow) - FOLLOWING_MAX) > 0:
        yield "so", f"{more:,} more error{'s' if more > 1 else ''} of this kind"
    if cause.graphs:
        yield "so", f"no jobs run in {_graphs(cause.graphs)}"


def _graphs(graphs: Sequence[CheckedGraph]) -> str:
    """Return graphs as text, such as `check, gate of hub/app; post of hub/lib`. Projects with the same pipelines are
    grouped."""
    of: dict[str, dict[str, None]] = {}
    for graph in graphs:
        of.setdefault(f"{graph.project}@{graph.branch}", {})[graph.pipeline] = None
    alike: dict[tuple[str, ...], list[str]] = {}
    for project, pipelines in of.items():
        alike.setdefault(tuple(pipelines), []).append(project)
    parts = [f"{listed(pipelines)} of {listed(projects, 4)}" for pipelines, projects in alike.items()]
    return "; ".join(parts[:FOLLOWING_MAX]) + (f"; and {len(parts) - FOLLOWING_MAX:,} more" if len(parts) > 3 else "")
