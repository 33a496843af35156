"""Show the commits and differences of changes of plain git, and people's remarks on them."""

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

# Git refuses a component of a ref that begins with a dot.
_WHO = re.compile(r"[A-Za-z0-9_@+-][A-Za-z0-9._@+-]{0,99}")
"""Names that can be part of a ref."""
NOBODY = "only a person can review: log in, or use a token that names a person; the operator's token does not"

EARLIER_MAX = 9
"""Limit on the earlier patchsets whose remarks are shown."""
REMARKS_MAX = 1_000
"""Limit on the remarks in one response."""
WHICH = (
    QueryParameter("project", "Name of the change's project."),
    QueryParameter("change", "`NAME` or `BRANCH/NAME` of the change."),
    QueryParameter("commit", "Only this commit of the change; all commits by default."),
)


class Approving(msgspec.Struct, frozen=True):
    """Return whether the caller may approve on the page, and how to approve by a push."""

    may: bool
    why: str
    """Why the person may not approve; empty if they may."""
    who: str
    """Name under which the person approves."""
    command: str
    """Command that approves by a push."""


class ReviewCall(NamedTuple):
    """Hold a request about a change under review, and who makes it."""

    site: Site
    change: Change
    tenant: str
    project: str
    """Its short name, which roles use."""
    bearer: Bearer | None

    @property
    def who(self) -> str:
        return f"{self.bearer.authenticator}/{self.bearer.name}" if self.bearer is not None else ""

    @property
    def speaker(self) -> Speaker:
        return self.site.settings.speakers.get(self.change.connection, Speaker("", bound=False))

    @property
    def name(self) -> str:
        """Return `<branch>/<topic>`."""
        return f"{self.change.branch}/{self.change.topic}"

    def may(self, permission: str) -> bool:
        found = self.site.tenant(self.tenant).tenant
        subject = {"project": self.project}
        return self.bearer is not None and self.site.access.permits(self.bearer, found, permission, subject)


def review_call(site: Site, request: HttpRequest, tenant: str, project: str, change: str) -> ReviewCall:
    """Return the change that the request is about. Raise 400, 404, 409."""
    if not project or not change:
        raise HTTPException("the parameters project and change are required", status_code=400)
    configured = site.tenant(tenant)
    found = site.change(tenant, project, change)
    driver = next((one.driver for one in site.settings.connections if one.name == found.connection), "git")
    # Forges have their own reviews: two places to review the same change could contradict each other.
    if driver != "git" or not found.is_change:
        where = f": {found.url}" if found.url else ""
        raise HTTPException(f"review {found.key} on the forge where it was proposed{where}", status_code=409)
    source = configured.tenant.find(found.project)
    name = source.name if source is not None else project
    return ReviewCall(site, found, tenant, name, site.access.reader(request))


def nobody(call: ReviewCall) -> str:
    """Return why the caller cannot review as a person; empty: the caller is an identified person."""
    return "" if call.bearer is not None and call.bearer.authenticator and call.bearer.name else NOBODY


def approving(call: ReviewCall) -> Approving:
    """Return whether the caller may approve here, and under which name."""
    change, speaker, bearer = call.change, call.speaker, call.bearer
    name = bearer.name if bearer is not None else ""
    # People paste the command into a shell, so a name with unusual characters must not become part of it.
    shown = name if _WHO.fullmatch(name) else "YOU"
    ref = f"refs/approvals/{shown}/{call.name}" if speaker.bound else f"refs/approved/{call.name}"
    command = f"git push origin {change.commit}:{ref}"
    if bearer is None or not call.may(APPROVE):
        return Approving(False, "none of your roles has the permission approve", "", command)
    if not speaker.auth:
        why = f"set people in [connection {change.connection}] to the [auth NAME] whose names the git server uses"
        return Approving(False, why, "", command)
    if bearer.authenticator != speaker.auth:
        return Approving(False, f"the git server uses the names of [auth {speaker.auth}]; log in there", "", command)
    # Git refuses refs with these parts, and the name becomes a component of `refs/approvals/WHO/…`.
    if not _WHO.fullmatch(name) or name.endswith((".", ".lock")) or ".." in name or "@{" in name:
        return Approving(False, f"the name {name!r} cannot be part of a ref", "", command)
    return Approving(True, "", name, command)


class FileShape(msgspec.Struct, frozen=True, kw_only=True):
    """Describe one changed file."""

    number: int
    """Number of the file among all changed files, from 0; the parameter `file` of `patch`."""
    path: str
    old_path: str
    status: str
    """A (added) | D (deleted) | M (modified) | R (renamed) | C (copied) | T (type changed)"""
    old_mode: str
    new_mode: str
    old_bytes: int
    new_bytes: int
    old: str
    """Id of the git object before the change; for a submodule, the commit."""
    new: str
    """Id of the git object after the change; for a submodule, the commit."""


class ReviewShape(msgspec.Struct, frozen=True, kw_only=True):
    """Describe the content of a change."""

    commit: str
    """The patchset."""
    base: str
    """The commit that the patchset is compared with; empty if there is none."""
    landed: bool
    """Whether the change has landed; then only its last commit is shown."""
    commits: tuple[gitwork.ReviewCommit, ...]
    """At most 100 commits, newest first; only on the first page."""
    more_commits: bool
    files: tuple[FileShape, ...]
    """At most 500 changed files; `page` requests the next ones."""
    total: int
    """Number of all changed files."""
    approving: Approving
    may_comment: bool
    may_recheck: bool


class PatchShape(msgspec.Struct, frozen=True, kw_only=True):
    """Hold one part of the diff of a file."""

    binary: bool
    lines: tuple[gitwork.DiffLine, ...]
    """[kind, line number before, line number after, text, number of omitted bytes]"""
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
    """Number of lines in the notes that are not valid remarks on this change."""


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
        "query": (*WHICH, QueryParameter("page", "Page of its files, from 0; each has at most 500.", NUMBER)),
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
            QueryParameter("file", "Number of the file in the change, from 0.", NUMBER),
            QueryParameter("part", "Part of the diff, from 0; each has at most 1,000 lines.", NUMBER),
        ),
    },
)
async def patch(site: Site, request: HttpRequest, tenant: str) -> PatchShape:
    """Return the diff of one file of a change. Headgate only."""
    query = request.query
    call = review_call(site, request, tenant, query.get("project", ""), query.get("change", ""))
    which, part = number(request, "file", 0), number(request, "part", 0)
    # Clients name a file by its number in the change: a path or an
    # object id would give access to anything in the repository.
    listed = (await _review(call, query.get("commit", ""), which // gitwork.FILES_A_PAGE)).files
    if which % gitwork.FILES_A_PAGE >= len(listed):
        raise NotFoundException(f"the change has no file {which}")
    file, change = listed[which % gitwork.FILES_A_PAGE], call.change
    # 160000 is git's mode of a submodule: its commit is in another repository, so its content cannot be compared.
    if "160000" in (file.old_mode, file.new_mode) or file.old == file.new:
        return PatchShape(binary=False, lines=(), more=False, ends="")
    work = gitwork.PatchRequest(change.project, change.connection, change.ref, change.commit, file.old, file.new, part)
    answer = await call.site.review.answer(call.who, work, gitwork.PatchAnswer)
    if not answer.ok:
        raise HTTPException(answer.error, status_code=409)
    return PatchShape(binary=answer.binary, lines=answer.lines, more=answer.more, ends=answer.ends)


@get(
    "/api/tenant/{tenant:str}/remarks",
    opt={"query": (*WHICH[:2], QueryParameter("skip", "Number of results to skip.", NUMBER)), "refuses": (502,)},
)
async def remarks(site: Site, request: HttpRequest, tenant: str) -> RemarksShape:
    """Return people's remarks on a change of plain git, including those on its previous patchsets. Headgate only."""
    query = request.query
    call = review_call(site, request, tenant, query.get("project", ""), query.get("change", ""))
    change, secret = call.change, await site.review.secret()
    work = gitwork.RemarksRequest(change.project, change.connection, (change.commit, *await _earlier(call)))
    answer = await site.review.answer(call.who, work, gitwork.RemarksAnswer)
    if not answer.ok:
        raise HTTPException(f"the remarks on {change.key} cannot be read: {answer.error}", status_code=409)
    read_ones = [read(secret, change.key, commit, lines) for commit, lines in answer.lines.items()]
    found = sorted((one for remarks, _ in read_ones for one in remarks), key=lambda one: (one.at, one.id))
    shown = found[number(request, "skip", 0) :][:REMARKS_MAX]
    more = max(0, len(found) - number(request, "skip", 0) - len(shown))
    return RemarksShape(remarks=tuple(shown), more=more, unread=answer.unread, odd=sum(odd for _, odd in read_ones))


async def _earlier(call: ReviewCall) -> tuple[str, ...]:
    """Return the earlier patchsets of the change that were tested, latest first; empty if they are unknown."""
    change = call.change
    query = HistoryQuery({"project": [change.project], "branch": [change.branch], "change": [change.name]}, limit=50)
    try:
        past = await call.site.history.buildsets(call.tenant, query)
    # Without the history, show only the remarks on the current patchset.
    except HistoryUnavailable:
        return ()
    commits = (ref.patchset for one in past for ref in one.refs if ref.change == named(change.name))
    return tuple(dict.fromkeys(one for one in commits if one and one != change.commit))[:EARLIER_MAX]


ROUTES = (review, patch, remarks)
