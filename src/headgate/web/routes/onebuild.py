"""Let people cancel one build, or run its job again."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import msgspec

from headgate.gate.model import Build, Item
from headgate.gate.onebuild import CancelBuild, RerunBuild
from headgate.rest import HttpRequest, JSONBody, NotFoundException, post
from headgate.web.routes.actions import Hand
from headgate.web.site import Site


class Why(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request something with no more than a reason."""

    reason: str = ""


class _Found(NamedTuple):
    pipeline: str
    item: Item
    build: Build

    @property
    def subject(self) -> str:
        return f"build {self.build.id}: {self.build.job} of {self.item.change.id} in {self.pipeline}"


def _allowed(site: Site, request: HttpRequest, tenant: str, uuid: str, permission: str) -> _Found:
    """Return the build, which is in the queues.  Raise 401, 403, 404."""
    site.tenant(tenant)
    found = next((_Found(*one) for one in site.status.builds(tenant) if one[2].id == uuid), None)
    project = found.item.change.project.partition("/")[2] if found else ""
    # Decided before the 404, so that only those who may act learn which builds are in the queues.
    site.allow(request, tenant, permission, project=project)
    if found is None:
        raise NotFoundException(f"no build {uuid!r} is in the queues")
    return found


@post("/api/tenant/{tenant:str}/build/{uuid:str}/cancel", status_code=200, opt={"permission": "dequeue"})
async def cancel(site: Site, request: HttpRequest, tenant: str, uuid: str, data: JSONBody[Why]) -> bool:
    """Cancel one build that waits or runs; its job counts as not passed. Headgate only."""
    found = _allowed(site, request, tenant, uuid, "dequeue")
    hand = Hand(site, request, "cancel", tenant, found.subject, data.reason)
    await hand.does(partial(site.ask, tenant, found.pipeline, CancelBuild(uuid, hand.explanation)))
    return True


@post("/api/tenant/{tenant:str}/build/{uuid:str}/rerun", status_code=200, opt={"permission": "enqueue"})
async def rerun(site: Site, request: HttpRequest, tenant: str, uuid: str, data: JSONBody[Why]) -> bool:
    """Run the job of a failed build again, and the jobs that depend on it, while the change is still in its queue. If
    the pipeline lands changes, the changes behind it are tested again. Headgate only.
    """
    found = _allowed(site, request, tenant, uuid, "enqueue")
    hand = Hand(site, request, "rerun", tenant, found.subject, data.reason)
    await hand.does(partial(site.ask, tenant, found.pipeline, RerunBuild(uuid)))
    return True


ROUTES = (cancel, rerun)
