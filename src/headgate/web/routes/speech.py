"""Let people remark on changes of plain git, approve them and have them tested again, from a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headgate.base.ids import fresh
from headgate.gate.state.gitwork import SayAnswer, SayRequest
from headgate.rest import HTTPException, HttpRequest, JSONBody, post
from headgate.store.types import Op
from headgate.web.access import APPROVE, COMMENT, mark_checked, must_be_json
from headgate.web.review.remarks import PATH_MAX_CHARS, SIDES, TEXT_MAX_CHARS, ReviewRemark, ShownRemark, read, signed
from headgate.web.routes.actions import Hand
from headgate.web.routes.review import ReviewCall, approving, nobody, review_call
from headgate.web.site import NEEDED, Site


class ForRemark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request a remark."""

    project: str
    change: str
    patchset: str
    """The full commit id of the patchset."""
    text: str = ""
    file: str = ""
    side: str = ""
    """old | new"""
    line: int = 0
    reply: str = ""
    """The id of the remark that it answers."""
    resolved: bool | None = None
    """Whether a reply settles the remark."""


@post("/api/tenant/{tenant:str}/remark", status_code=200, opt={"permission": COMMENT})
async def remark(site: Site, request: HttpRequest, tenant: str, data: JSONBody[ForRemark]) -> ShownRemark:
    """Make a remark on a proposed commit under the caller's own name. It is stored in the commit's repository. Headgate
    only.
    """
    call = _speaking(site, request, tenant, data.project, data.change, COMMENT, APPROVE)
    _proposed(call, data.patchset)
    if wrong := _unfit(data):
        raise HTTPException(wrong, status_code=400)
    words = msgspec.structs.asdict(data)
    about = {name: words[name] for name in ("text", "file", "side", "line", "reply", "resolved")}
    written, line = await _line(call, about)
    await _push(call, line, {})
    (remark,), _ = read(await site.review.secret(), call.change.key, written.commit, [line])
    return remark


def _unfit(data: ForRemark) -> str:
    """Return what is wrong with a remark; empty: nothing."""
    if not data.text.strip() and data.resolved is None:
        return "text: say something"
    if len(data.text) > TEXT_MAX_CHARS or len(data.file) > PATH_MAX_CHARS:
        return f"text: at most {TEXT_MAX_CHARS} characters, and {PATH_MAX_CHARS} of file"
    if data.side not in ("", *SIDES) or not 0 <= data.line < 2**31:
        return "side: old or new; line: a number"
    if data.resolved is not None and not data.reply:
        return "resolved: it is said in a reply"
    return ""


class ForApproval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request an approval or a recheck."""

    project: str
    change: str
    patchset: str
    """The full commit id; no other commit is approved."""
    withdraw: bool = False
    """Whether to withdraw the approval."""
    reason: str = ""


@post("/api/tenant/{tenant:str}/approve", status_code=200, opt={"permission": APPROVE})
async def approve(site: Site, request: HttpRequest, tenant: str, data: JSONBody[ForApproval]) -> bool:
    """Approve exactly this commit of a change of plain git under the caller's own name, or withdraw the approval. The
    requirements of the pipelines decide what it counts for, as for any other approval. Headgate only.
    """
    call = _speaking(site, request, tenant, data.project, data.change, APPROVE)
    approval = approving(call)
    if not approval.may:
        raise site.access.refused(403, f"{approval.why}; by a push: {approval.command}")
    _proposed(call, data.patchset)
    word = {"word": "withdrawn" if data.withdraw else "approved", "text": data.reason[:TEXT_MAX_CHARS]}
    to = "" if data.withdraw else data.patchset
    words = dict.fromkeys(_approvals(call, approval.who), to)

    async def work(besides: Sequence[Op]) -> None:
        # That somebody approves is recorded before the push: a crash between leaves a record without an outcome, never
        # an approval that nobody is known to have given.
        await site.context.store.commit([], besides)
        await _push(call, (await _line(call, word))[1], words)

    verb = "unapprove" if data.withdraw else "approve"
    subject, details = f"{call.name} of {call.project}", {"commit": data.patchset, "as": approval.who}
    await Hand(site, request, verb, tenant, subject, data.reason, details).does(work)
    return True


@post("/api/tenant/{tenant:str}/recheck", status_code=200, opt={"permission": "enqueue"})
async def recheck(site: Site, request: HttpRequest, tenant: str, data: JSONBody[ForApproval]) -> bool:
    """Test a change of plain git again, as a push to `refs/recheck` does. Headgate only."""
    call = review_call(site, request, tenant, data.project, data.change)
    site.allow(request, tenant, "enqueue", project=call.project)
    _proposed(call, data.patchset)

    async def work(besides: Sequence[Op]) -> None:
        await site.context.store.commit([], besides)
        await _push(call, "", {f"refs/recheck/{call.name}": data.patchset})

    subject, details = f"{call.name} of {call.project}", {"commit": data.patchset}
    await Hand(site, request, "recheck", tenant, subject, data.reason, details).does(work)
    return True


def _speaking(
    site: Site, request: HttpRequest, tenant: str, project: str, change: str, *permissions: str
) -> ReviewCall:
    """Return the call of a person who has one of these permissions for the change. Raise 401, 403 …"""
    must_be_json(request)
    bearer = site.access.bearer(request)
    if bearer is None:
        raise site.access.refused(401, NEEDED)
    call = review_call(site, request, tenant, project, change)._replace(bearer=bearer)
    if not any(call.may(one) for one in permissions):
        raise site.access.refused(403, f"you may not {permissions[0]} in tenant {tenant}")
    # The operator's token names no person, so it must not approve or comment as one.
    if why := nobody(call):
        raise site.access.refused(403, why)
    mark_checked(request)
    return call


def _proposed(call: ReviewCall, patchset: str) -> None:
    """Raise 409 for another commit than the one that is proposed now."""
    change = call.change
    change_state = call.site.status.change_states(call.tenant).now().get(change.key)
    if change_state is None or not change_state.open or change.commit != patchset:
        why = (
            f"{change.key} is proposed as {change.commit[:12]} now"
            if change_state and change_state.open
            else "it is closed"
        )
        raise HTTPException(f"{why}; look at it again", status_code=409)


def _approvals(call: ReviewCall, who: str) -> list[str]:
    """Return the refs to push for an approval: the one under the person's name if the server binds names, and the one
    without a name if a pipeline requires it or no other is known.
    """
    layout, change = call.site.tenant(call.tenant).layouts.landed, call.change
    wanted = any(change.connection in one.require_approved for one in layout.pipelines.values())
    # The same refs that a person would push: pipelines judge one kind of approval, wherever it was given.
    named = [f"refs/approvals/{who}/{call.name}"] if call.speaker.bound else []
    return [*named, *([f"refs/approved/{call.name}"] if wanted or not named else [])]


async def _line(call: ReviewCall, about: Mapping[str, Any]) -> tuple[ReviewRemark, str]:
    """Return a signed remark of the caller, and its line in a note."""
    site, change, bearer = call.site, call.change, call.bearer
    assert bearer is not None, "who speaks is somebody"
    made = ReviewRemark(
        id=fresh(),
        # Signed along with the commit: the line cannot be copied to another change that has the same commit.
        change=change.key,
        commit=change.commit,
        who=bearer.name[:255],
        realm=bearer.authenticator,
        at_ms=site.context.now_ms(),
        **about,
    )
    found = signed(await site.review.secret(), made)
    return found, msgspec.json.encode(found).decode()


async def _push(call: ReviewCall, line: str, words: Mapping[str, str]) -> None:
    """Raise 409 with what the git server says."""
    change = call.change
    work = SayRequest(change.project, change.connection, change.ref, change.commit, line, dict(words))
    answer = await call.site.review.say(call.who, work, SayAnswer)
    if not answer.ok:
        raise HTTPException(f"the git server does not take it: {answer.error}", status_code=409)


ROUTES = (remark, approve, recheck)
