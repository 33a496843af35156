"""Format what jobs say of lines of files for the report of the change, and select what the history keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from headgate.gate.change import Change
from headgate.gate.model import Build, BuildSet
from headgate.gate.returns.shape import FileComment

COMMENTS_MAX = 100
"""Limit of comments in one report, and of one build in the history."""
KEPT_MAX_BYTES = 100_000
"""Size limit of the comments of one buildset in the history."""


def report_lines(buildset: BuildSet, changes: Sequence[Change]) -> list[str]:
    """Return the comments as lines of the report, by file and line, each with its job; then how many were left out."""
    found = [one for job in buildset.jobs if (build := buildset.builds.get(job.id)) for one in _of(build)]
    everything = any(change.files is None for change in changes)
    files = {file for change in changes for file in change.files or ()}
    touched, elsewhere = list[tuple[str, FileComment, str]](), list[str]()
    for one in found:
        if everything or one[0] in files:
            touched.append(one)
        else:
            elsewhere.append(one[2])
    shown = sorted(touched, key=lambda one: (one[0], one[1].line))[:COMMENTS_MAX]
    lines = [_line(path, comment, job) for path, comment, job in shown]
    if more := len(touched) - len(shown):
        lines.append(f"There are {more} more comments.")
    if elsewhere:
        jobs, where = ", ".join(dict.fromkeys(elsewhere)), "files that this change does not touch"
        lines.append(f"{len(elsewhere)} comments of {jobs} are left out: they are on {where}.")
    return ["", *lines] if lines else []


def for_history(buildset: BuildSet) -> dict[str, dict[str, tuple[FileComment, ...]]]:
    """Return, by build, file -> comments, as many as there is room for in one record of the history."""
    left_bytes, found = KEPT_MAX_BYTES, dict[str, dict[str, tuple[FileComment, ...]]]()
    for build in buildset.builds.values():
        for path, comment, _ in islice(_of(build), COMMENTS_MAX):
            # Limits of each build alone would not bound the record, because an item may have any number of builds.
            left_bytes -= len(path) + len(msgspec.json.encode(comment))
            if left_bytes < 0:
                return found
            of = found.setdefault(build.id, {})
            of[path] = (*of.get(path, ()), comment)
    return found


def _of(build: Build) -> Iterator[tuple[str, FileComment, str]]:
    for path, comments in (build.returned.file_comments or {}).items():
        yield from ((path, comment, build.job) for comment in comments)


def _line(path: str, comment: FileComment, job: str) -> str:
    """Format a line as compilers do. Further lines of a message are indented, so that none of them looks like a comment
    of its own."""
    place = f"{path}:{comment.line}" if comment.line else path
    message = comment.message.replace("\n", "\n    ")
    return f"{place}: {comment.level}: {message} [{job}]" if comment.level else f"{place}: {message} [{job}]"
