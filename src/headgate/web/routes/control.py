"""Let people enqueue, dequeue and promote changes, cancel and rerun builds, reconfigure, and control processes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from headgate.base.ids import fresh
from headgate.config.explain.variants import parameter
from headgate.config.freeze.sections import completed, unaccepted
from headgate.gate.rules.refs import is_parametrised, update
from headgate.gate.state.change import is_called, numbered
from headgate.gate.state.management import ByHand, CancelBuild, Dequeue, Enqueue, Promote, RerunBuild
from headgate.gate.state.model import Build, Item
from headgate.map.queues import ReadAnew
from headgate.rest import HTTPException, HttpRequest, JSONBody, NotFoundException, post
from headgate.services.membership import want
from headgate.store.types import Op
from headgate.web.access import UNAPPROVED, must_be_json
from headgate.web.routes.actions import Hand
from headgate.web.routes.autohold import AUTOHOLD, ForHold, hold
from headgate.web.site import Site, outcome_of, ref_of

B = TypeVar("B", bound=msgspec.Struct)
CHANGES_MAX = 200
"""Limit on the changes that one request may promote."""
OF_ALL = "for the entire system: the operator's token, or a token for every tenant"


class Why(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hold only the reason of a request."""

    reason: str = ""


class _Found(NamedTuple):
    pipeline: str
    item: Item
    build: Build

    @property
    def subject(self) -> str:
        return f"build {self.build.id}: {self.build.job} of {self.item.change.id} in {self.pipeline}"


def _allowed(site: Site, request: HttpRequest, tenant: str, uuid: str, permission: str) -> _Found:
    """Return a build in the queues that the caller may act on.  Raise 401, 403, 404."""
    site.tenant(tenant)
    found = next((_Found(*one) for one in site.status.builds(tenant) if one[2].id == uuid), None)
    project = found.item.change.project.partition("/")[2] if found else ""
    # Checked before raising 404, so that only authorized callers learn which builds are in the queues.
    site.allow(request, tenant, permission, project=project)
    if found is None:
        raise NotFoundException(f"no build {uuid!r} is in the queues")
    return found


@post("/api/tenant/{tenant:str}/build/{uuid:str}/cancel", status_code=200, opt={"permission": "dequeue"})
async def cancel(site: Site, request: HttpRequest, tenant: str, uuid: str, data: JSONBody[Why]) -> bool:
    """Cancel one waiting or running build; its job counts as failed. Headgate only."""
    found = _allowed(site, request, tenant, uuid, "dequeue")
    hand = Hand(site, request, "cancel", tenant, found.subject, data.reason)
    await hand.does(partial(site.ask, tenant, found.pipeline, CancelBuild(uuid, hand.explanation)))
    return True


@post("/api/tenant/{tenant:str}/build/{uuid:str}/rerun", status_code=200, opt={"permission": "enqueue"})
async def rerun(site: Site, request: HttpRequest, tenant: str, uuid: str, data: JSONBody[Why]) -> bool:
    """Run the job of a failed build again, and the jobs that depend on it, while the change is still in its queue. In a
    pipeline that lands changes, the changes behind it are tested again. Headgate only.
    """
    found = _allowed(site, request, tenant, uuid, "enqueue")
    hand = Hand(site, request, "rerun", tenant, found.subject, data.reason)
    await hand.does(partial(site.ask, tenant, found.pipeline, RerunBuild(uuid)))
    return True


class ForChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request to enqueue or dequeue a change or a ref. If both are given, enqueue uses the change, and dequeue refuses
    the request."""

    pipeline: str
    change: str | None = None
    """`NAME` or `BRANCH/NAME` of a change of the project in the URL, optionally with `,PATCHSET`: the patchset's number
    or commit, or at least the first seven digits of the commit.
    """
    ref: str | None = None
    """`refs/heads/…`, `refs/tags/…` or another ref."""
    oldrev: str | None = None
    """Commit of the ref before the update."""
    newrev: str | None = None
    """Commit of the ref after the update; for enqueue, by default the ref's latest known commit. For dequeue, it
    restricts the request to this update of the ref.
    """
    parameters: dict[str, Any] | None = None  # of the types that the configuration declares
    """Values of the pipeline's parameters, for enqueuing a branch or a tag."""
    reason: str = ""
    """The reason, which is recorded with the action. Headgate only."""
    unapproved: bool = False
    """Whether to enqueue this patchset into a pipeline that lands changes although it does not meet the requirements.
    Only for enqueue; Headgate only.
    """


class ForFreeze(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request the parameters of a pipeline for a ref."""

    pipeline: str = ""
    ref: str = ""
    """`refs/heads/…`, `refs/tags/…` or the name of a branch."""


class ForChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request to promote changes."""

    pipeline: str
    changes: tuple[str, ...]
    """The changes in the desired order: `NAME`, `BRANCH/NAME` or `HOST/PROJECT/BRANCH/NAME`, each optionally with
    `,PATCHSET`.
    """
    reason: str = ""
    unapproved: bool = False
    """Whether to move the changes although they no longer meet the requirements. Headgate only."""


@post(
    "/api/tenant/{tenant:str}/project/{rest:path}",
    status_code=200,
    opt={
        "rest": ("{project}/enqueue", "{project}/dequeue", "{project}/autohold", "{project}/freeze-pipeline"),
        "permission": f"enqueue, dequeue, {AUTOHOLD}; with unapproved {UNAPPROVED}",
        "body": {"enqueue": ForChange, "dequeue": ForChange, AUTOHOLD: ForHold, "freeze-pipeline": ForFreeze},
    },
)
async def control(
    site: Site,
    request: HttpRequest,
    tenant: str,
    rest: str,
    data: JSONBody[dict[str, Any]],  # of the verb
) -> bool | dict[str, Any]:  # of the verb
    """Act on a project. `…/enqueue` and `…/dequeue` enqueue and dequeue a change or a ref: a pipeline that lands
    changes or is post-review accepts only changes that meet its requirements, and only commits that their ref contains;
    other pipelines accept anything. `…/autohold` creates an autohold. `…/freeze-pipeline` returns the parameters of a
    pipeline, and needs no token.
    """
    project, _, verb = rest.strip("/").rpartition("/")
    if verb == AUTOHOLD:
        site.allow(request, tenant, verb, project=project)
        await hold(site, request, tenant, project, _body_of(data, ForHold))
    elif verb in ("enqueue", "dequeue"):
        await _moved(site, request, tenant, project, verb, _body_of(data, ForChange))
    elif verb == "freeze-pipeline":
        # `Site.allow` checks this for the other verbs, which need a token.
        must_be_json(request)
        return _parameters(site, tenant, project, _body_of(data, ForFreeze))
    else:
        raise NotFoundException(f"{verb!r} is unknown; use enqueue, dequeue, {AUTOHOLD} or freeze-pipeline")
    return True


def _parameters(site: Site, tenant: str, project: str, data: ForFreeze) -> dict[str, Any]:  # JSON
    """Return the parameters that a pipeline accepts for a ref of a project.  Raise 400, 404, 409."""
    for name in ("ref", "pipeline"):
        if not getattr(data, name):
            raise HTTPException(f"{name} is required", status_code=400)
    canonical = site.project(tenant, project)
    site.pipeline(tenant, data.pipeline)
    branch = data.ref.removeprefix("refs/heads/") if not data.ref.startswith("refs/tags/") else ""
    graph = site.tenant(tenant).layouts.landed.freeze(data.pipeline, canonical, branch, data.ref)
    if graph.errors:
        raise HTTPException("\n".join(error.render() for error in graph.errors), status_code=409)
    return {"parameters": [parameter(one) for one in graph.parameters]}


def _body_of(data: dict[str, Any], type: type[B]) -> B:
    """Convert the body to the type that the verb takes.  Raise 400."""
    try:
        return msgspec.convert(data, type)
    except msgspec.ValidationError as error:
        raise HTTPException(f"Invalid request body: {error}", status_code=400) from error


async def _moved(site: Site, request: HttpRequest, tenant: str, project: str, verb: str, data: ForChange) -> None:
    """Enqueue a change or a ref into a pipeline, or dequeue it."""
    of_ref = {"ref": data.ref} if data.ref and not data.change else {}
    site.allow(request, tenant, verb, project=project, **of_ref)
    if data.unapproved:
        # Needed in addition to the permission for the verb, as it bypasses the pipeline's requirements.
        site.allow(request, tenant, UNAPPROVED, project=project, **of_ref)
    _one(data, verb)
    details = {"pipeline": data.pipeline, "unapproved": data.unapproved}
    more = {"oldrev": data.oldrev, "newrev": data.newrev, "parameters": data.parameters}
    details |= {name: value for name, value in more.items() if of_ref and value}
    subject = f"{data.change or data.ref} of {project} in {data.pipeline}"
    hand = Hand(site, request, UNAPPROVED if data.unapproved else verb, tenant, subject, data.reason, details)

    async def work(besides: Sequence[Op]) -> None:
        # Resolved within the action, so that an attempt with an unknown change is recorded, too.
        wanted = await _wanted(site, tenant, project, verb, data, hand.explanation)
        await site.ask(tenant, data.pipeline, wanted, besides)

    await hand.does(work)


def _one(data: ForChange, verb: str) -> None:
    """Check the body. Raise 400 if it is ambiguous or incomplete."""
    if not (data.change or data.ref):
        raise HTTPException("name a change or a ref", status_code=400)
    if data.change and data.ref and verb == "dequeue":
        raise HTTPException("name a change or a ref, not both", status_code=400)
    if data.parameters and (data.change or not is_parametrised(data.ref or "")):
        raise HTTPException("Parameters are supported only with branches or tags", status_code=400)


async def _wanted(site: Site, tenant: str, project: str, verb: str, data: ForChange, why: str) -> Enqueue | Dequeue:
    if data.change and verb == "dequeue":
        return Dequeue(_parted(site, tenant, project, data) or site.change(tenant, project, data.change).key, why)
    if data.change:
        return Enqueue(site.change(tenant, project, data.change), fresh(), data.unapproved)
    ref, newrev = data.ref or "", data.newrev or ""
    if verb == "dequeue":
        return Dequeue(update("", site.project(tenant, project), ref).key, why, newrev)
    site.pipeline(tenant, data.pipeline)
    change = await ref_of(site, tenant, project, ref, data.oldrev or "", newrev)
    layout = site.tenant(tenant).layouts.landed
    # Which branches contain a tag is known only once its item is prepared, so accept the parameters of any branch.
    held = layout.branches.get(change.project, ()) if change.tag else ()
    known = layout.freeze(data.pipeline, change.project, change.branch, ref, containing=held).parameters
    given = data.parameters or {}
    if wrong := unaccepted(known, given):
        raise HTTPException(f"parameters: {'; '.join(wrong)}", status_code=400)
    return Enqueue(change, fresh(), data.unapproved, ByHand(completed(known, given), claimed=not data.unapproved))


def _parted(site: Site, tenant: str, project: str, data: ForChange) -> str:
    """Return the key of the change if an alarm of the pipeline names it, which may be closed; empty: no alarm does."""
    site.pipeline(tenant, data.pipeline)
    state, canonical = site.status.state(tenant, data.pipeline).state, site.project(tenant, project)
    named = [key for one in state.parted for key in (*one.missing, *one.landed)]
    named += [one.key for one in state.strayed]
    begin, end, number = f"{canonical}/", f"/{data.change}", numbered(canonical, (data.change or "").partition(",")[0])
    found = (key for key in named if key.startswith(begin) and f"/{key.removeprefix(begin)}".endswith(end))
    return next((key for key in named if key in (data.change, number)), "") or next(found, "")


@post("/api/tenant/{tenant:str}/promote", status_code=200, opt={"permission": "promote"})
async def promote(site: Site, request: HttpRequest, tenant: str, data: JSONBody[ForChanges]) -> bool:
    """Move changes to the head of their queue; all items from there on are tested again."""
    site.allow(request, tenant, "promote")
    if data.unapproved:
        site.allow(request, tenant, UNAPPROVED)
    if not 0 < len(data.changes) <= CHANGES_MAX:
        raise HTTPException(f"changes must name between 1 and {CHANGES_MAX} changes", status_code=400)
    subject = f"{', '.join(data.changes)} in {data.pipeline}"
    details = {"pipeline": data.pipeline, "unapproved": data.unapproved}
    keys = tuple(_key_of(site, tenant, data.pipeline, change) for change in data.changes)
    wanted = Promote(keys, fresh(), data.unapproved)
    hand = Hand(site, request, "promote", tenant, subject, data.reason, details)
    await hand.does(partial(site.ask, tenant, data.pipeline, wanted))
    return True


def _key_of(site: Site, tenant: str, pipeline: str, name: str) -> str:
    """Return the key of the pipeline's change with this name; if there is none, the name itself. Raise 400."""
    site.pipeline(tenant, pipeline)
    changes = [change for _, item in site.status.state(tenant, pipeline).state.items() for change in item.changes]
    keys = {change.key for change in changes if is_called(change, name)}
    if len(keys) > 1:
        which = ", ".join(sorted(keys))
        raise HTTPException(f"{name!r} is ambiguous; use one of {which}", status_code=400)
    # An unknown name is passed on: the pipeline refuses it, which records the attempt.
    return next(iter(keys), name)


class ForProjects(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request to reconfigure projects."""

    projects: tuple[str, ...] = ()
    """Names of projects; if empty, every project of the tenant."""
    reason: str = ""


@post("/api/tenant/{tenant:str}/reconfigure", status_code=200, opt={"permission": OF_ALL})
async def reconfigure(site: Site, request: HttpRequest, tenant: str, data: JSONBody[ForProjects]) -> bool:
    """Read the configuration of projects again, even if it has not changed."""
    site.allow_all(request)
    site.tenant(tenant)
    hand = Hand(site, request, "reconfigure", tenant, ", ".join(data.projects) or "every project", data.reason)
    await hand.does(partial(site.reread, tenant, data.projects))
    return True


class HowMuch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request to read the tenant file again."""

    full: bool = False
    """Whether to also read the configuration of every project of every tenant again."""
    reason: str = ""


class ReadAgain(msgspec.Struct, frozen=True):
    """Report the outcome of a reconfiguration."""

    text: str
    """The differences, in plain English."""


@post("/api/reconfigure", status_code=200, opt={"permission": OF_ALL})
async def read_anew(site: Site, request: HttpRequest, data: JSONBody[HowMuch]) -> ReadAgain:
    """Read the tenant file again; all processes then add and remove tenants and projects accordingly. An invalid file
    is refused, and the current configuration stays in force. Headgate only.
    """
    site.allow_all(request)
    request_ids = list[str]()

    async def work(besides: Sequence[Op]) -> None:
        stream = site.context.map.system.requests.stream
        request_ids.append(await outcome_of(site, stream, partial(ReadAnew, full=data.full), besides))

    subject = "the tenant file and every project" if data.full else "the tenant file"
    await Hand(site, request, "reconfigure", subject=subject, reason=data.reason).does(work)
    return ReadAgain(request_ids[0])


VERBS = {"running": "unpause", "paused": "pause", "stopped": "stop"}


class ControlBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request that a component change its state."""

    state: Literal["running", "paused", "stopped"]
    reason: str = ""


@post(
    "/api/component/{kind:str}/{name:str}",
    status_code=200,
    opt={"permission": OF_ALL},
)
async def component(site: Site, request: HttpRequest, kind: str, name: str, data: JSONBody[ControlBody]) -> bool:
    """Pause, resume or stop a component. An executor or a merger finishes its current work before it stops."""
    site.allow_all(request)

    async def work(besides: Sequence[Op]) -> None:
        if not await want(site.context, f"{kind}/{name}", data.state, besides):
            raise NotFoundException(f"there is no component {kind}/{name}")

    await Hand(site, request, VERBS[data.state], subject=f"{kind}/{name}", reason=data.reason).does(work)
    return True


@post("/api/zone/{zone:str}/forget", status_code=200, opt={"permission": OF_ALL})
async def forget(site: Site, request: HttpRequest, zone: str, data: JSONBody[Why]) -> bool:
    """Forget which labels of machines a zone has, except those of running executors."""
    site.allow_all(request)
    labels = site.context.map.executor.zones(zone).labels

    async def work(besides: Sequence[Op]) -> None:
        if await site.context.store.get(labels.path) is None:
            raise NotFoundException(f"there are no recorded labels of a zone {zone!r}")
        await site.context.store.commit([], [labels.delete(), *besides])

    await Hand(site, request, "forget", subject=f"zone {zone}", reason=data.reason).does(work)
    return True


ROUTES = (control, promote, reconfigure, read_anew, component, forget, cancel, rerun)
