"""Record who approved a change and why. Approvals themselves are pushes to a repository, which Headgate notices like
any other push.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headgate.rest import HttpRequest, JSONBody, post
from headgate.store.types import Op
from headgate.web.routes.actions import Hand
from headgate.web.site import Site


class ApprovalBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request a note about an approval."""

    project: str
    change: str
    """`<branch>/<topic>`"""
    commit: str = ""
    reason: str = ""


@post("/api/tenant/{tenant:str}/approval", status_code=200, opt={"permission": "enqueue"})
async def approval(site: Site, request: HttpRequest, tenant: str, data: JSONBody[ApprovalBody]) -> bool:
    """Record that a person approved a change by a push: who, what and why. This request itself approves nothing.
    Headgate only.
    """
    site.allow(request, tenant, "enqueue", project=data.project)
    site.project(tenant, data.project)

    async def work(besides: Sequence[Op]) -> None:
        await site.context.store.commit([], besides)

    subject, details = f"{data.change} of {data.project}", {"commit": data.commit}
    await Hand(site, request, "approve", tenant, subject, data.reason, details).does(work)
    return True


ROUTES = (approval,)
