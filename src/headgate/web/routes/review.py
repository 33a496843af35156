"""Show what changes of plain git change, and the remarks of people on them."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from headgate.gate.state import gitwork
from headgate.gate.state.change import Change
from headgate.ports.history import HistoryQuery, HistoryUnavailable, named
from headgate.rest import HTTPException, HttpRequest, NotFoundException, get
from headgate.web.access import APPROVE, COMMENT, Bearer
from headgate.web.description import NUMBER, QueryParameter
from headgate.web.review.remarks import ShownRemark, Speaker, read
from headgate.web.routes.history import number
from headgate.web.site import Site

_WHO = re.compile(r"[A-Za-z0-9_@+-][A-Za-z0-9._@+-]{0,99}")
"""Names that can be part of a ref."""
NOBODY = "a review is said by a person: log in, or bring a token that names one; the operator's token is nobody's name"

EARLIER_MAX = 9
"""Patchsets before the one that is proposed whose remarks are shown."""
REMARKS_MAX = 1_000
"""In one answer."""
WHICH = (
    QueryParameter("project", "Its name."),
    QueryParameter("change", "As a change is named anywhere: `NAME` or `BRANCH/NAME`."),
    QueryParameter("commit", "One commit of the change alone; all of them by default."),
)


class Approving(msgspec.Struct, frozen=True):
    """Say whether the caller may approve on the page, and how to approve by a push."""

    may: bool
    why: str
    """Reason why the person may not write remarks, for people; empty when they may."""
    who: str
    """Name under which the person writes remarks."""
    command: str


class ReviewCall(NamedTuple):
    site: Site
    change: Change
    tenant: str
    project: str
    """Its short name, as roles name it."""
    bearer: Bearer | None

    @property
    def who(self) -> str:
        return f"{self.bearer.authenticator}/{self.bearer.name}" if self.bearer is not None else ""

    @property
    def speaker(self) -> Speaker:
        return self.site.speakers.get(self.change.connection, Speaker("", bound=False))

    @property
    def name(self) -> str:
        """Return `<branch>/<topic>`."""
        return f"{self.change.branch}/{self.change.topic}"

    def may(self, permission: str) -> bool:
        found = self.site.tenant(self.tenant).tenant
        subject = {"project": self.project}
        return self.bearer is not None and self.site.access.permits(self.bearer, found, permission, subject)


def review_call(site: Site, request: HttpRequest, tenant: str, project: str, change: str) -> ReviewCall:
    """Return the change that the request concerns. Raise 400, 404, 409."""
    if not project or not change:
        raise HTTPException("say which: project and change", status_code=400)
    configured = site.tenant(tenant)
    found = site.change(tenant, project, change)
    driver = next((one.driver for one in site.connections if one.name == found.connection), "git")
    # Forges have reviews of their own; two places to review would contradict each other.
    if driver != "git" or not found.is_change:
        where = f": {found.url}" if found.url else ""
        raise HTTPException(f"{found.key} is reviewed where it was proposed{where}", status_code=409)
    source = configured.tenant.find(found.project)
    name = source.name if source is not None else project
    return ReviewCall(site, found, tenant, name, site.access.reader(request))


def nobody(call: ReviewCall) -> str:
    """Return the reason why the caller is not a person; empty: they are one."""
    return "" if call.bearer is not None and call.bearer.authenticator and call.bearer.name else NOBODY


def approving(call: ReviewCall) -> Approving:
    """Return whether the caller may approve here, and under which name."""
    change, speaker, bearer = call.change, call.speaker, call.bearer
    name = bearer.name if bearer is not None else ""
    # The command is meant to be pasted into a shell, so a name with other characters must not be part of it.
    shown = name if _WHO.fullmatch(name) else "YOU"
    ref = f"refs/approvals/{shown}/{call.name}" if speaker.bound else f"refs/approved/{call.name}"
    command = f"git push origin {change.commit}:{ref}"
    if bearer is None or not call.may(APPROVE):
        return Approving(False, "you have no role with the permission approve", "", command)
    if not speaker.auth:
        why = f"nobody has said whose names are those of the git server (people, in [connection {change.connection}])"
        return Approving(False, why, "", command)
    if bearer.authenticator != speaker.auth:
        return Approving(False, f"names of the git server are those of [auth {speaker.auth}]", "", command)
    # Git refuses refs with these parts; the name would be a component of `refs/approvals/WHO/…`.
    if not _WHO.fullmatch(name) or name.endswith((".", ".lock")) or ".." in name or "@{" in name:
        return Approving(False, f"the name {name!r} cannot be part of a ref", "", command)
    return Approving(True, "", name, command)


class FileShape(msgspec.Struct, frozen=True, kw_only=True):
    """Describe one file that differs."""

    number: int
    """Its number among all files, from 0; `patch` uses it."""
    path: str
    old_path: str
    status: str
    """A (added) | D (deleted) | M (modified) | R (renamed) | C (copied) | T (type changed)"""
    old_mode: str
    new_mode: str
    old_bytes: int
    new_bytes: int
    old: str
    """Its object before and after; for a submodule, the commit."""
    new: str


class ReviewShape(msgspec.Struct, frozen=True, kw_only=True):
    """Describe the content of a change."""

    commit: str
    """The patchset."""
    base: str
    """The commit that it is compared with; empty if there is none."""
    landed: bool
    """Whether the change has landed; then only its last commit is shown."""
    commits: tuple[gitwork.ReviewCommit, ...]
    """The commits, newest first, at most 100; only on the first page."""
    more_commits: bool
    files: tuple[FileShape, ...]
    """The changed files, at most 500; `page` requests the next ones."""
    total: int
    """The number of files that differ."""
    approving: Approving
    may_comment: bool
    may_recheck: bool


class PatchShape(msgspec.Struct, frozen=True, kw_only=True):
    """Hold one part of the differences of a file."""

    binary: bool
    lines: tuple[gitwork.DiffLine, ...]
    """[kind, line before, line after, text, number of bytes that are not shown]"""
    more: bool
    ends: str


class RemarksShape(msgspec.Struct, frozen=True, kw_only=True):
    """List the remarks on a change, oldest first."""

    remarks: tuple[ShownRemark, ...]
    more: int
    """Number of later remarks that are not shown."""
    unread: tuple[str, ...]
    """Patchsets with too many remarks to read."""
    odd: int
    """Number of lines in the notes that are not remarks on this change."""


async def _review(call: ReviewCall, one: str, page: int) -> gitwork.ReviewAnswer:
    change = call.change
    known = call.site.status.change_states(call.tenant).now()
    below = tuple(known[key].change.commit for key in change.bases if key in known)
    where = {"project": change.project, "connection": change.connection, "branch": change.branch}
    work = gitwork.ReviewRequest(**where, ref=change.ref, commit=change.commit, below=below, one=one, page=page)
    answer = await call.site.review.answer(call.who, work, gitwork.ReviewAnswer)
    if not answer.ok:
        raise HTTPException(f"{change.key} cannot be shown: {answer.error}", status_code=409)
    return answer


@get(
    "/api/tenant/{tenant:str}/review",
    opt={
        "query": (*WHICH, QueryParameter("page", "Of its files, five hundred each, from 0.", NUMBER)),
        "refuses": (502,),
    },
)
async def review(site: Site, request: HttpRequest, tenant: str) -> ReviewShape:
    """Return the commits and files of a change of plain git.  Headgate only."""
    query = request.query
    call = review_call(site, request, tenant, query.get("project", ""), query.get("change", ""))
    page = number(request, "page", 0)
    answer = await _review(call, query.get("commit", ""), page)
    return ReviewShape(
        commit=call.change.commit,
        base=answer.base,
        landed=answer.landed,
        commits=answer.commits,
        more_commits=answer.more_commits,
        files=tuple(_file(page * gitwork.FILES_A_PAGE + n, one) for n, one in enumerate(answer.files)),
        total=answer.total,
        approving=approving(call),
        may_comment=not nobody(call) and (call.may(COMMENT) or call.may(APPROVE)),
        may_recheck=call.may("enqueue"),
    )


def _file(number: int, file: gitwork.ReviewFile) -> FileShape:
    return FileShape(
        number=number,
        path=file.path,
        old_path=file.old_path,
        status=file.status,
        old_mode=file.old_mode,
        new_mode=file.new_mode,
        old_bytes=file.old_bytes,
        new_bytes=file.new_bytes,
        old=file.old,
        new=file.new,
    )


@get(
    "/api/tenant/{tenant:str}/patch",
    opt={
        "refuses": (502,),
        "query": (
            *WHICH,
            QueryParameter("file", "The number of the file.", NUMBER),
            QueryParameter("part", "From 0; a part has a thousand lines at most.", NUMBER),
        ),
    },
)
async def patch(site: Site, request: HttpRequest, tenant: str) -> PatchShape:
    """Return how one file of a change differs. Headgate only."""
    query = request.query
    call = review_call(site, request, tenant, query.get("project", ""), query.get("change", ""))
    which, part = number(request, "file", 0), number(request, "part", 0)
    # Files are asked for by their number in the change: a name or an
    # object id could ask for anything in the repository.
    listed = (await _review(call, query.get("commit", ""), which // gitwork.FILES_A_PAGE)).files
    if which % gitwork.FILES_A_PAGE >= len(listed):
        raise NotFoundException(f"the change has no file {which}")
    file, change = listed[which % gitwork.FILES_A_PAGE], call.change
    # 160000 is git's mode of a submodule: its commit is in another repository, so there is nothing to compare.
    if "160000" in (file.old_mode, file.new_mode) or file.old == file.new:
        return PatchShape(binary=False, lines=(), more=False, ends="")
    work = gitwork.PatchRequest(change.project, change.connection, change.ref, change.commit, file.old, file.new, part)
    answer = await call.site.review.answer(call.who, work, gitwork.PatchAnswer)
    if not answer.ok:
        raise HTTPException(answer.error, status_code=409)
    return PatchShape(binary=answer.binary, lines=answer.lines, more=answer.more, ends=answer.ends)


@get(
    "/api/tenant/{tenant:str}/remarks",
    opt={"query": (*WHICH[:2], QueryParameter("skip", schema=NUMBER)), "refuses": (502,)},
)
async def remarks(site: Site, request: HttpRequest, tenant: str) -> RemarksShape:
    """Return the remarks of people on a change of plain git, including those on its last patchsets. Headgate only."""
    query = request.query
    call = review_call(site, request, tenant, query.get("project", ""), query.get("change", ""))
    change, secret = call.change, await site.review.secret()
    work = gitwork.RemarksRequest(change.project, change.connection, (change.commit, *await _earlier(call)))
    answer = await site.review.answer(call.who, work, gitwork.RemarksAnswer)
    if not answer.ok:
        raise HTTPException(f"what was said of {change.key} cannot be read: {answer.error}", status_code=409)
    read_ones = [read(secret, change.key, commit, lines) for commit, lines in answer.lines.items()]
    found = sorted((one for remarks, _ in read_ones for one in remarks), key=lambda one: (one.at, one.id))
    shown = found[number(request, "skip", 0) :][:REMARKS_MAX]
    more = max(0, len(found) - number(request, "skip", 0) - len(shown))
    return RemarksShape(remarks=tuple(shown), more=more, unread=answer.unread, odd=sum(odd for _, odd in read_ones))


async def _earlier(call: ReviewCall) -> tuple[str, ...]:
    """Return the patchsets of the change that were tested before, latest first; empty if they are unknown."""
    change = call.change
    question = HistoryQuery({"project": [change.project], "branch": [change.branch], "change": [change.name]}, limit=50)
    try:
        past = await call.site.history.buildsets(call.tenant, question)
    # Without the history only the remarks on the present patchset are shown.
    except HistoryUnavailable:
        return ()
    commits = (ref.patchset for one in past for ref in one.refs if ref.change == named(change.name))
    return tuple(dict.fromkeys(one for one in commits if one and one != change.commit))[:EARLIER_MAX]


ROUTES = (review, patch, remarks)
