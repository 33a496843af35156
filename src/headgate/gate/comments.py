"""What jobs say of lines of files: told in the report of the change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headgate.gate.change import Change
from headgate.gate.model import Build, BuildSet
from headgate.gate.returns.shape import FileComment

COMMENTS_MAX = 100
"""In one report."""


def told(buildset: BuildSet, changes: Sequence[Change]) -> list[str]:
    """Lines of the report: by file and line, each with its job; then what is left out."""
    found = [one for job in buildset.jobs if (build := buildset.builds.get(job.id)) for one in _of(build)]
    touched = [one for one in found if any(change.files is None or one[0] in change.files for change in changes)]
    shown = sorted(touched, key=lambda one: (one[0], one[1].line))[:COMMENTS_MAX]
    lines = [_line(path, comment, job) for path, comment, job in shown]
    if more := len(touched) - len(shown):
        lines.append(f"There are {more} more comments.")
    elsewhere = dict.fromkeys(job for path, _, job in found if (path, _, job) not in touched)
    if elsewhere:
        jobs, files = ", ".join(elsewhere), "files that this change does not touch"
        lines.append(f"{len(found) - len(touched)} comments of {jobs} are left out: they are on {files}.")
    return ["", *lines] if lines else []


def _of(build: Build) -> Iterator[tuple[str, FileComment, str]]:
    for path, comments in (build.returned.file_comments or {}).items():
        yield from ((path, comment, build.job) for comment in comments)


def _line(path: str, comment: FileComment, job: str) -> str:
    """As compilers write it; further lines of a message are indented, so that none of them begins as one of ours."""
    place = f"{path}:{comment.line}" if comment.line else path
    said = comment.message.replace("\n", "\n    ")
    return f"{place}: {comment.level}: {said} [{job}]" if comment.level else f"{place}: {said} [{job}]"
