"""Accounts that machines were made in, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from headgate.map.inventory.nodes import NodeAccount
from headgate.services.context import Context
from headgate.services.nodes.machines.survey import seen
from headgate.web.shapes import ProblemShape

NAMED_MAX = 5
"""Limit on the machines that are named."""


class AccountShape(msgspec.Struct, frozen=True, kw_only=True):
    """Name an account in which machines were made and may still exist. Headgate only."""

    id: str
    connection: str
    region: str
    nodes: tuple[str, ...]
    """Machines that are written down there."""
    strange: tuple[str, ...]
    """Some that have our tag, and that another installation made."""
    lacking: bool
    """Whether the launcher's settings have no such connection."""
    since: int | None
    """Since when there is a problem, in milliseconds since the epoch."""


def node_accounts(context: Context) -> list[AccountShape]:
    """Return them by connection and region."""
    now = seen(context.map, context.mirror)
    found = []
    for id, one in now.accounts.items():
        made = (node for node in now.nodes.values() if not (node.fixed or node.main))
        nodes = [node.id for node in made if _is_at(one, node.connection, node.said)]
        found.append(AccountShape(
            id=id, connection=one.connection, region=one.region, nodes=tuple(sorted(nodes)), strange=one.strange,
            lacking=bool(one.lacking_ms) and not one.given_up,
            since=one.lacking_ms or one.strange_ms or None,
        ))  # fmt: skip
    return sorted(found, key=lambda one: (one.connection, one.region))


def _is_at(account: NodeAccount, connection: str, stored: dict[str, dict[str, object]]) -> bool:
    return (connection, str(stored.get("provider", {}).get("region", ""))) == (account.connection, account.region)


def account_problems(context: Context) -> Iterator[ProblemShape]:
    """Yield the problems of accounts, for everybody."""
    if not context.mirror.names(context.map.nodes.accounts.path):
        return
    for one in node_accounts(context):
        where = f"the connection {one.connection}" + (f", region {one.region}" if one.region else "")
        if one.lacking:
            several = f"{len(one.nodes)} machines" if one.nodes else "machines"
            text = (
                f"the launcher's settings have no such connection any more; {several} were made there, and nobody can "
                f"take them away: put it back, or take them away by hand and say `headgate node forget {one.id}`"
            )
            yield ProblemShape(where, text, one.since or 0)
        if one.strange:
            text = (
                f"{', '.join(one.strange[:NAMED_MAX])} there have the tag of this installation and were made by "
                "another one: this store, or that one's, is a copy; they are left alone"
            )
            yield ProblemShape(where, text, one.since or 0)
