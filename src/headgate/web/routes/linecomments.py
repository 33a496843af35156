"""Show the comments of jobs on lines of files, for one build or one patchset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from headgate.gate.builds.report import COMMENTS_MAX
from headgate.gate.state.change import Change
from headgate.gate.state.model import Build, Item
from headgate.gate.state.returns import FileComment, Range
from headgate.ports.history import HistoryQuery
from headgate.rest import HTTPException, HttpRequest, get
from headgate.web.builds import job_of
from headgate.web.description import QueryParameter
from headgate.web.site import Site

BUILDS_MAX = 100
"""Limit on the builds whose comments one response has."""
SHOWN_MAX = 500
PARAMETERS = (
    QueryParameter("build", "Id of a build; alternatively, give a project and a patchset."),
    QueryParameter("project", "Name of a project."),
    QueryParameter("patchset", "Commit of a patchset of the project."),
)


class LineComment(msgspec.Struct, frozen=True, kw_only=True):
    """Represent one comment on a file, or on a line of it."""

    path: str
    line: int
    """Number of the line; 0: the comment is about the file."""
    level: str
    """info | warning | error, or empty"""
    message: str
    range: Range | None
    build: str
    job_name: str
    pipeline: str


class _BuildComments(NamedTuple):
    build: str
    job_name: str
    pipeline: str
    comments: Mapping[str, tuple[FileComment, ...]]


@get("/api/tenant/{tenant:str}/file-comments", opt={"query": PARAMETERS})
async def file_comments(site: Site, request: HttpRequest, tenant: str) -> list[LineComment]:
    """Return the comments on files of one build, or of all jobs on a patchset: those of each job's latest build in each
    pipeline. They are ordered by file and line, at most 500. Headgate only.
    """
    site.tenant(tenant)
    build, project, patchset = (request.query.get(name, "") for name in ("build", "project", "patchset"))
    if bool(build) == bool(project and patchset):
        raise HTTPException("name a build, or a project and a patchset", status_code=400)
    if build:
        query = HistoryQuery({"uuid": (build,)}, limit=1, comments=True)
        live = [record for _, record in _live(site, tenant) if record.build == build]
    else:
        source = site.tenant(tenant).tenant.find(project)
        if source is None:
            return []
        same = {"project": (source.project,), "patchset": (patchset,)}
        query = HistoryQuery(same, limit=BUILDS_MAX, comments=True)
        live = [record for changes, record in _live(site, tenant) if _is_of(changes, source.project, patchset)]
    # Sorting is stable: final builds come first, and the latest stay first among them.
    builds = sorted(await site.history.builds(tenant, query), key=lambda one: not one.final)
    past = [_BuildComments(one.uuid, one.job_name, one.pipeline, one.comments or {}) for one in builds]
    # Builds that are still in a queue are later than all recorded ones.
    found = [one for record in _latest([*live, *past]) for one in _each(record)]
    return sorted(found, key=lambda one: (one.path, one.line, one.job_name))[:SHOWN_MAX]


def _live(site: Site, tenant: str) -> Iterator[tuple[tuple[Change, ...], _BuildComments]]:
    """Yield the ended builds in the queues and those that are not recorded yet, with their changes."""
    for pipeline, item, build in site.status.builds(tenant):
        if build.result is not None:
            yield (
                item.circle,
                _BuildComments(build.id, _name(item, build), pipeline, build.returned.file_comments or {}),
            )
    for ended in site.leaving(tenant):
        changes = (ended.change, *ended.others)
        yield from (
            (changes, _BuildComments(one.uuid, one.job_name, ended.pipeline, one.comments)) for one in ended.builds
        )


def _name(item: Item, build: Build) -> str:
    job = job_of(item, build)
    return job.name if job is not None else build.job


def _is_of(changes: Iterable[Change], project: str, commit: str) -> bool:
    return any(change.project == project and change.commit == commit for change in changes)


def _latest(records: Sequence[_BuildComments]) -> Iterator[_BuildComments]:
    """Yield the first build of each job in each pipeline; the input is sorted: final builds first, then latest
    first."""
    known = set[tuple[str, str]]()
    for one in records:
        if (key := (one.pipeline, one.job_name)) not in known:
            known.add(key)
            yield one


def _each(record: _BuildComments) -> Iterator[LineComment]:
    left = COMMENTS_MAX
    for path, comments in record.comments.items():
        for comment in comments[:left]:
            yield LineComment(
                path=path,
                line=comment.line,
                level=comment.level or "",
                message=comment.message,
                range=comment.range,
                build=record.build,
                job_name=record.job_name,
                pipeline=record.pipeline,
            )
        left -= min(left, len(comments))


ROUTES = (file_comments,)
