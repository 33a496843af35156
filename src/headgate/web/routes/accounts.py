"""Show and remove the accounts in which machines were made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from headgate.rest import HTTPException, HttpRequest, JSONBody, NotFoundException, get, post
from headgate.store.types import At, Op
from headgate.web.nodeaccounts import AccountShape, node_accounts
from headgate.web.routes.actions import Hand, plain
from headgate.web.routes.control import OF_ALL
from headgate.web.site import Site


class WhatOfAccount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request something of an account."""

    do: Literal["forget"]
    reason: str = ""


@get("/api/node-accounts", opt={"permission": OF_ALL})
async def list_accounts(site: Site, request: HttpRequest) -> list[AccountShape]:
    """Return the accounts in which machines were made, for as long as resources of this system may exist there.
    Headgate only.
    """
    site.allow_all(request)
    return node_accounts(site.context)


@post("/api/node-accounts/{id:str}", status_code=200, opt={"permission": OF_ALL})
async def forget_account(site: Site, request: HttpRequest, id: str, data: JSONBody[WhatOfAccount]) -> bool:
    """Remove the records of what was made in an account that left the launcher's settings. Headgate only."""
    site.allow_all(request)
    context = site.context
    record = context.map.nodes.accounts(id).record
    entry = context.mirror.get(record.path)
    if entry is None:
        raise NotFoundException(f"there is no account {id!r}")
    one, bearer = record.decode(entry.value), site.access.bearer(request)
    if not one.lacking_ms:
        text = f"the launcher's settings have the connection {one.connection}: what is there is taken away by itself"
        raise HTTPException(text, status_code=409)
    given_up = plain(bearer.name) if bearer is not None else "somebody"

    async def work(besides: Sequence[Op]) -> None:
        put = record.put(replace(one, given_up=given_up or "somebody"))
        # The launcher writes this record, too: if it has found the connection again meanwhile, nothing is given up.
        await context.store.commit([At(entry.path, entry.version)], [put, *besides])

    await Hand(site, request, "forget-account", "", f"{one.connection} {one.region}".strip(), data.reason).does(work)
    return True


ROUTES = (list_accounts, forget_account)
