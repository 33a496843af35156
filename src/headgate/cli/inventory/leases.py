"""Implement `headgate inventory lease`, `quota` and `health`."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime

import click

from headgate.base.errors import UserError
from headgate.base.texts import plain_json
from headgate.cli.groups import CommandGroup
from headgate.cli.inventory import calls
from headgate.cli.inventory.objects import find
from headgate.cli.terminal.say import say
from headgate.inventory.wire import inventory_pb2 as pb

LOOK_INTERVAL_S = 1.0
GRACE_S = 60
"""Seconds that a lease request outlives the wait of its command, in case the command dies without ending it."""
_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_DURATION = re.compile(r"(?:[0-9]{1,9}[smhd])+")
_STATES = {pb.Lease.WAITING: "waiting", pb.Lease.HELD: "held", pb.Lease.CLEANING: "cleaning", pb.Lease.ENDED: "ended"}


class Duration(click.ParamType[int]):
    """Convert `90s`, `30m`, `2h` or `1d12h` to seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if not _DURATION.fullmatch(text):
            self.fail(f"{text!r} is not a duration: write 90s, 30m, 2h or 1d12h", param, ctx)
        return sum(int(number) * _UNITS_S[unit] for number, unit in re.findall(r"([0-9]+)([smhd])", text))


@click.group("lease", cls=CommandGroup)
def lease() -> None:
    """Lease a machine, or an amount of an object's property, for a limited time: ask, list, get, extend, end."""


@lease.command("ask")
@click.option("--for", "duration_s", type=Duration(), required=True, metavar="2h", help="Duration of the lease.")
@click.option(
    "--filter",
    "-f",
    "search",
    default="",
    metavar="EXPR",
    help="Conditions that the machine must meet; see `object list`.",
)
@click.option(
    "--amount",
    "-a",
    "amounts",
    multiple=True,
    metavar="KEY=N",
    help="Lease this amount of a property instead of the entire object; repeatable.",
)
@click.option(
    "--precedence",
    type=click.IntRange(1),
    default=None,
    help="Lower numbers are served first; below 200 only for operators.",
)
@click.option("--note", default="", help="Purpose of the lease.")
@click.option(
    "--wait",
    "wait_s",
    type=Duration(),
    default=None,
    metavar="30m",
    help="Wait up to this long for the lease to be granted.",
)
@calls.connected
def ask(
    address: calls.ServiceAddress, duration_s: int, search: str, amounts: tuple[str, ...], precedence: int | None,
    note: str, wait_s: int | None,
) -> None:  # fmt: skip
    """Request a lease of a machine, and print the id of the lease.

    Without --wait, the request waits in line for a day; `lease get` shows whether the lease is granted.
    """
    wanted = {}
    for one in amounts:
        key, equals, number = one.partition("=")
        if not equals:
            raise UserError(f"{one!r} is not an amount: write KEY=NUMBER, as in memory=8")
        wanted[key] = number
    client = address.open()
    answer = client.call(
        "AskLease", search=search, amounts=wanted, duration_s=duration_s, precedence=precedence or 0, note=note,
        # If this process dies, the service ends the wait on its own.
        wait_s=wait_s + GRACE_S if wait_s is not None else 0,
    )  # fmt: skip
    if wait_s is not None:
        answer = _waited(client, answer, wait_s)
    if address.json or address.verbose:
        _one(address, answer)
    elif not address.quiet:
        say(answer.id)


def _waited(client: calls.InventoryClient, lease: pb.Lease, wait_s: int) -> pb.Lease:
    """Wait until the lease is granted, and return it. If it is not granted in time, end it, and raise UserError."""
    until = time.monotonic() + wait_s
    while lease.state == pb.Lease.WAITING:
        if time.monotonic() > until:
            # This also returns a lease that is granted at this very moment, which nobody would use.
            client.call("EndLease", id=lease.id)
            were = "request was" if lease.ahead == 1 else "requests were"
            raise UserError(f"not granted within {wait_s} s: {lease.ahead} {were} ahead; this one is cancelled")
        time.sleep(min(LOOK_INTERVAL_S, max(0.0, until - time.monotonic())))
        lease = client.call("GetLease", id=lease.id)
    return lease


@lease.command("list")
@calls.connected
def list_(address: calls.ServiceAddress) -> None:
    """List the leases of the project: granted leases first, then waiting requests in their order."""
    found = address.open().call("ListLeases").leases
    rows = (
        (one.id, _STATES.get(one.state, "?"), one.name or one.search, _amounts(one), one.user, one.project,
         _when(one.until_ms) or f"{one.ahead} ahead", one.note)
        for one in found
    )  # fmt: skip
    calls.show(address, found, ("id", "state", "object", "amounts", "user", "project", "until", "note"), rows)


@lease.command("get")
@click.argument("id")
@calls.connected
def get(address: calls.ServiceAddress, id: str) -> None:
    """Show one lease."""
    _one(address, address.open().call("GetLease", id=id))


@lease.command("extend")
@click.argument("id")
@click.option(
    "--for", "duration_s", type=Duration(), required=True, metavar="2h", help="New duration, counted from now."
)
@calls.connected
def extend(address: calls.ServiceAddress, id: str, duration_s: int) -> None:
    """Extend a lease, if no other request waits for its object."""
    found = address.open().call("ExtendLease", id=id, duration_s=duration_s)
    if not address.quiet:
        say(f"until {_when(found.until_ms)}")


@lease.command("end")
@click.argument("ids", nargs=-1, required=True, metavar="ID…")
@calls.connected
def end(address: calls.ServiceAddress, ids: tuple[str, ...]) -> None:
    """End leases: return their objects, or cancel requests that wait."""
    client = address.open()
    for id in ids:
        client.call("EndLease", id=id)
        if not address.quiet:
            say(id)


@click.group("quota", cls=CommandGroup)
def quota() -> None:
    """Manage quotas, which limit the leases of the partition: set, list, delete."""


@quota.command("set")
@click.argument("name")
@click.option(
    "--for-project",
    default="",
    metavar="NAME",
    help="Apply to this project; *: to each project separately; empty: to all projects together.",
)
@click.option(
    "--for-user",
    default="",
    metavar="NAME",
    help="Apply to this user; *: to each user separately; empty: to all users together.",
)
@click.option("--filter", "-f", "search", default="", metavar="EXPR", help="Apply to objects that match.")
@click.option(
    "--property",
    "key",
    default="",
    metavar="KEY",
    help="Limit the amount of this property. Default: limit the number of objects.",
)
@click.option("--most", default="", metavar="N", help="Maximum number, or amount of the property, at a time.")
@click.option(
    "--hours", default="", metavar="N", help="Maximum hours of use in each window; for a property, amount times hours."
)
@click.option("--window-hours", type=click.IntRange(0), default=0, metavar="N", help="Length of a window for --hours.")
@calls.connected
def set_quota(
    address: calls.ServiceAddress, name: str, for_project: str, for_user: str, search: str, key: str, most: str,
    hours: str, window_hours: int,
) -> None:  # fmt: skip
    """Create the quota NAME, or replace it."""
    address.open().call("SetQuota", quota=pb.Quota(
        name=name, project=for_project, user=for_user, search=search, property=key, most=most, hours=hours,
        window_hours=window_hours,
    ))  # fmt: skip


@quota.command("list")
@calls.connected
def list_quotas(address: calls.ServiceAddress) -> None:
    """List the quotas that apply to you; operators see all."""
    found = address.open().call("ListQuotas").quotas
    rows = (
        (one.name, one.project or "all", one.user or "all", one.search, one.property or "objects", one.most,
         f"{one.hours} in {one.window_hours} h" if one.hours else "")
        for one in found
    )  # fmt: skip
    calls.show(address, found, ("name", "project", "user", "search", "of", "at a time", "hours"), rows)


@quota.command("delete")
@click.argument("name")
@calls.connected
def delete_quota(address: calls.ServiceAddress, name: str) -> None:
    """Delete a quota."""
    address.open().call("DeleteQuota", name=name)


@click.group("health", cls=CommandGroup)
def health() -> None:
    """Show and set the health of machines: list, get, failed, well. Unhealthy machines are never leased."""


@health.command("list")
@calls.connected
def list_health(address: calls.ServiceAddress) -> None:
    """List the objects with failures or unanswered probes since they were last healthy."""
    found = address.open().call("ListHealth").health
    rows = (
        (one.name, one.uuid, _state(one), str(one.failures), str(one.missed), one.why, _when(one.seen_ms))
        for one in found
    )
    calls.show(
        address, found, ("name", "uuid", "state", "failures", "missed probes", "last failure", "last healthy"), rows
    )


@health.command("get")
@click.argument("named", metavar="UUID-OR-NAME")
@calls.connected
def get_health(address: calls.ServiceAddress, named: str) -> None:
    """Show whether and how long a machine has been healthy or unhealthy, and the reason if it is unhealthy."""
    client = address.open()
    one = client.call("GetHealth", uuid=find(client, "", named).uuid)
    if address.json:
        say(plain_json(json.dumps(calls.as_dict(one), indent=1, ensure_ascii=False)))
    else:
        say(": ".join(filter(None, (f"{one.name} is {_state(one)}", one.why))))


@health.command("failed")
@click.argument("named", metavar="UUID-OR-NAME")
@click.argument("why")
@calls.connected
def failed(address: calls.ServiceAddress, named: str, why: str) -> None:
    """Record a failure of a machine."""
    if not why:
        raise UserError("describe the failure; to declare the machine healthy, use `health well`")
    client = address.open()
    client.call("ReportHealth", uuid=find(client, "", named).uuid, why=why)


@health.command("well")
@click.argument("named", metavar="UUID-OR-NAME")
@calls.connected
def well(address: calls.ServiceAddress, named: str) -> None:
    """Declare a machine healthy, so that it can be leased again."""
    client = address.open()
    client.call("ReportHealth", uuid=find(client, "", named).uuid)


def _one(address: calls.ServiceAddress, found: pb.Lease) -> None:
    if address.json:
        say(plain_json(json.dumps(calls.as_dict(found), indent=1, ensure_ascii=False)))
        return
    rows = {
        "id": found.id, "state": _STATES.get(found.state, "?"), "search": found.search, "amounts": _amounts(found),
        "user": found.user, "project": found.project, "object": found.name, "uuid": found.object,
        "begun": _when(found.begun_ms), "until": _when(found.until_ms), "ended": _when(found.ended_ms),
        "why": found.why, "note": found.note,
        "ahead": str(found.ahead) if found.state == pb.Lease.WAITING else "",
    }  # fmt: skip
    for label, value in rows.items():
        if value:
            say(f"{label:<12}{value}")


def _state(one: pb.Health) -> str:
    if one.state == pb.Health.UNKNOWN:
        return "not probed"
    word = "unhealthy" if one.state == pb.Health.UNHEALTHY else "healthy"
    return f"{word} since {_when(one.since_ms)}" if one.since_ms else word


def _amounts(one: pb.Lease) -> str:
    return " ".join(f"{key}={number}" for key, number in sorted(one.amounts.items()))


def _when(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if at_ms else ""
