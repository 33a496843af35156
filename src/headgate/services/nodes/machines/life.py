"""Take one machine through its life cycle: each step calls its cloud once, and is recorded before the next."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from headgate.config.keys.nodes import CONNECTIONS
from headgate.config.machines import FlatProvider
from headgate.gate.state.returns import Sealed
from headgate.map.inventory.nodes import ARRIVING, ENDING, FREE, MadeNode, NodeWait
from headgate.ports import clouds
from headgate.ports.secrets import SecretError
from headgate.services.nodes.accounts import WHY_MAX, CloudAccount, wanted_of
from headgate.services.nodes.ledger import MachineLedger, with_tries
from headgate.services.nodes.machines.records import SLOT_HOST, slot_ids
from headgate.store.types import Op, StoreError, TooLarge

log = logging.getLogger("headgate.launcher")

POLL_S = 2.0
"""Interval between two checks of a machine that is being created or deleted."""
BACKOFF_FIRST_S, BACKOFF_MAX_S = 5.0, 300.0
"""First and longest time for which a label that failed at a provider is not tried there; it doubles with every
failure."""
TIGHT_S = 300.0
"""Time after that pause for which only one request at a time creates machines there."""
FULL_S = 20.0
"""Time for which nothing is created at a provider after its cloud reported a lack of room."""
REMOVAL_MAX_S = 120.0
STUCK_S = 600.0
"""Time after which a machine that is being deleted counts as stuck."""
WATCH_S = 300.0
"""Interval between two checks whether a static machine answers."""
DEFECT_S = 60.0
"""Pause after an unexpected error with a machine."""
SCANNED = ("ssh", "network_cli", "winrm")
"""Ansible connections that are tested before a machine is given away; with ssh, its host keys are read."""
Scan = Callable[[Mapping[str, Any]], Awaitable[str]]
"""Returns the keys of a host, one per line. Raises MachineUnusable."""
Seal = Callable[[bytes], Awaitable[Sealed]]
"""Encrypts secrets. Raises SecretError."""


class Backoff:
    """Remember which labels failed and which providers had no room, to pause attempts at them, with the reasons."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, str], tuple[float, float, str]] = {}
        """(provider, label or nothing) -> end of the pause, its length, and its reason."""

    def failed(self, provider: str, label: str, why: str) -> None:
        key, now_s = (provider, label), asyncio.get_running_loop().time()
        _, length_s, _ = self._until.get(key, (0.0, BACKOFF_FIRST_S / 2, ""))
        length_s = min(2 * length_s, BACKOFF_MAX_S)
        self._until[key] = now_s + length_s, length_s, why

    def full(self, provider: str, why: str) -> None:
        self._until[provider, ""] = asyncio.get_running_loop().time() + FULL_S, FULL_S, why

    def well(self, provider: str, label: str) -> None:
        self._until.pop((provider, label), None)
        self._until.pop((provider, ""), None)

    def why(self, provider: str, label: str) -> str:
        """Return why the provider currently creates no machines of a label; empty if it does."""
        now_s, short = asyncio.get_running_loop().time(), provider.rpartition("/")[2]
        for key in ((provider, ""), (provider, label)):
            until_s, _, why = self._until.get(key, (0.0, 0.0, ""))
            if until_s > now_s:
                return f"provider {short}: {why}"
        return ""

    def is_tight(self, provider: str) -> bool:
        """Return whether the provider's cloud lacked room a while ago."""
        # Any earlier time would do; this one is just outside the period.
        until_s = self._until.get((provider, ""), (-TIGHT_S, 0.0, ""))[0]
        return until_s + TIGHT_S > asyncio.get_running_loop().time()

    def is_full(self, provider: str) -> bool:
        """Return whether the provider's cloud lacked room at the last attempt."""
        return self._until.get((provider, ""), (0.0, 0.0, ""))[0] > asyncio.get_running_loop().time()

    def ends_s(self) -> list[float]:
        """Return when each may be tried again, in the loop's time."""
        return [until_s for until_s, _, _ in self._until.values()]


@dataclass(slots=True)
class Life:
    """Advance machines, one step at a time."""

    ledger: MachineLedger
    accounts: Mapping[str, CloudAccount]
    backoff: Backoff
    scan: Scan
    seal: Seal
    provider: Callable[[str], FlatProvider | None]
    """Returns the provider with this canonical name as it is configured now."""

    async def step(self, id: str) -> float:
        """Take the next step of a machine; return the seconds until another one is due."""
        found = self.ledger.node(id)
        if found is None:
            return 0.0
        node, _ = found
        account = self.accounts.get(node.connection)
        # Another launcher's settings may have the connection, so the machine waits.
        if account is None:
            await self._waits(id, f"the connection {node.connection} is not in this launcher's settings")
            return 60.0
        try:
            return await self._next(account, node)
        except clouds.CloudUnavailable as away:
            await self._waits(id, str(away)[:WHY_MAX])
            return max(POLL_S, away.after_s)
        # A lack of room is no failure of the label, so it does not count as an attempt, but pauses the entire provider.
        except clouds.OverQuota as over:
            self.backoff.full(node.provider, f"its cloud has no room: {str(over)[:WHY_MAX]}")
            await self._failed(node, str(over), counts=False)
        except (clouds.LaunchFailed, SecretError) as failed:
            # A listed machine cannot be created elsewhere, so it is retried while it is listed.
            if node.fixed:
                await self._waits(id, str(failed)[:WHY_MAX])
                return WATCH_S
            self.backoff.failed(node.provider, node.label, str(failed)[:WHY_MAX])
            await self._failed(node, str(failed), counts=True)
        except Exception as error:
            # An unavailable store or a lost lock is not the machine's fault, and the launcher must handle it.
            if isinstance(error, StoreError) and not isinstance(error, TooLarge):
                raise
            log.exception("machine %s of %s: its next step failed", node.id, node.provider)
            return DEFECT_S
        return 0.0

    async def _next(self, account: CloudAccount, node: MadeNode) -> float:
        """Take the next step of the machine. Raise LaunchFailed, OverQuota, CloudUnavailable, SecretError."""
        if node.state in ENDING:
            return await self._remove(account, node)
        if node.external_id:
            return await self._learn_keys(node)
        return await self._make(account, node)

    async def _make(self, account: CloudAccount, node: MadeNode) -> float:
        """Make the machine. Raise LaunchFailed, OverQuota, CloudUnavailable, SecretError."""
        now_ms, image = self.ledger.context.now_ms(), node.settings["image"]
        if image.get("connection-type", CONNECTIONS[0]) not in CONNECTIONS:
            raise clouds.LaunchFailed(
                f"image {image.get('name', '')}: its connection-type must be one of {', '.join(CONNECTIONS)}"
            )
        # The start time is recorded first, so that the time limit survives a restart of the launcher.
        if not node.begun_ms:
            begun = node.state if node.fixed else "building"
            await self.ledger.change(node.id, lambda one: replace(one, state=begun, begun_ms=now_ms))
        provider = self.provider(node.provider)
        limit_s = provider.launch_timeout_s if provider is not None else 0
        if limit_s and node.begun_ms and now_ms - node.begun_ms > 1000 * limit_s:
            raise clouds.LaunchFailed(f"it was not created within {limit_s} s: {node.why}")
        made = await account.ask(lambda: account.cloud.advance(wanted_of(node), node.driver))
        if isinstance(made, clouds.MachinePending):
            state, why = dict(made.state), made.why[:WHY_MAX]
            await self.ledger.change(node.id, lambda one: replace(one, driver=state, why=why))
            return POLL_S
        # Many processes can read the record in the store, so secrets are encrypted.
        secrets = await self.seal(msgspec.json.encode(dict(made.secrets))) if made.secrets else None
        await self.ledger.change(node.id, lambda one: _there(one, made, secrets, self.ledger.context.now_ms()))
        return 0.0

    async def _learn_keys(self, node: MadeNode) -> float:
        """Learn the host keys of a created machine, and return the seconds until the next step. Raise LaunchFailed if
        it takes too long."""
        host, keys = node.host, ""
        if host is not None and _is_scanned(node):
            try:
                keys = believed(host, await self.scan(host))
            except clouds.MachineUnusable as error:
                limit_s, why = node.settings["label"].get("boot-timeout", 300), str(error)[:WHY_MAX]
                if node.fixed:
                    late = self.ledger.context.now_ms() - node.since_ms > 1000 * limit_s
                    await self._waits(node.id, why)
                    return WATCH_S if late else POLL_S
                if self.ledger.context.now_ms() - node.since_ms > 1000 * limit_s:
                    raise clouds.LaunchFailed(f"it could not be reached within {limit_s} s: {why}") from error
                await self._waits(node.id, why)
                return POLL_S

        def ready(one: MadeNode) -> MadeNode:
            if one.state not in ("building", *ARRIVING):
                return one
            known = {**one.host, clouds.HOST_KEY_VARIABLE: keys} if one.host is not None and keys else one.host
            return replace(one, state=SLOT_HOST if one.slots else "ready", host=known, why="")

        # The machine was reached, so the label works there, and its pauses start over with the next failure.
        self.backoff.well(node.provider, node.label)
        await self.ledger.change(node.id, ready)
        return 0.0

    async def watch(self, id: str) -> float:
        """Check whether a free static machine still answers; return the seconds until the next check."""
        found = self.ledger.node(id)
        if found is None or found[0].host is None or found[0].request or found[0].state != "ready":
            return WATCH_S
        node, _ = found
        # The interval starts when the machine becomes ready, so that machines are not all checked at the same time.
        left_s = WATCH_S - (self.ledger.context.now_ms() - node.since_ms) / 1000
        if left_s > 0 or not _is_scanned(node):
            return max(left_s, POLL_S)
        try:
            believed(node.host or {}, await self.scan(node.host or {}))
        except clouds.MachineUnusable as error:
            why = str(error)[:WHY_MAX]

            def lost(one: MadeNode) -> MadeNode:
                # A build may have got it while the scan ran.
                same = one.state == "ready" and not one.request
                return replace(one, state="registering", why=why) if same else one

            await self.ledger.change(id, lost)
        return WATCH_S

    async def _remove(self, account: CloudAccount, node: MadeNode) -> float:
        """Delete the machine; failures are retried until nothing is left. Return the seconds until the next step. Raise
        CloudUnavailable."""
        if any(self.ledger.node(id) is not None for id in slot_ids(node)):
            return POLL_S  # a build may still have one of its slots
        try:
            gone = await account.ask(lambda: account.cloud.remove(wanted_of(node), node.driver))
        except (clouds.LaunchFailed, clouds.OverQuota) as error:
            await self._waits(node.id, f"it cannot be deleted: {str(error)[:WHY_MAX]}")
            return self._patience_s(node)
        if gone:
            order = self.ledger.context.map.nodes.orders(node.id).record
            present = self.ledger.context.mirror.get(order.path) is not None
            await self.ledger.change(node.id, lambda _: None, lambda _: [order.delete()] if present else [])
            return 0.0
        return self._patience_s(node)

    def _patience_s(self, node: MadeNode) -> float:
        """Return the pause before the next attempt to delete a machine: some are never deleted, but requests wait for
        the room of others."""
        past_s = (self.ledger.context.now_ms() - node.since_ms) / 1000
        # A tenth of its age: a deletion that takes a minute is noticed within seconds, and one that hangs for hours
        # costs few calls.
        return min(max(POLL_S, past_s / 10), REMOVAL_MAX_S)

    async def _failed(self, node: MadeNode, why: str, *, counts: bool) -> None:
        """Mark the machine as failed, and record that for its request; `counts`: as an attempt at the provider.  A
        failed slot also fails its machine, and a failed machine its free slots."""
        log.warning("machine %s of %s: %s", node.id, node.provider, why)
        for id in slot_ids(node):
            found = self.ledger.node(id)
            if found is not None and found[0].state in FREE:
                # Only free slots fail now; used ones end with their builds.
                await self._one_failed(found[0], why, counts=counts)
        await self._one_failed(node, why, counts=counts)
        if node.main:
            await self.ledger.change(node.main, lambda one: replace(one, state="failed", why=why[:WHY_MAX]))

    async def _one_failed(self, node: MadeNode, why: str, *, counts: bool) -> None:
        short = node.provider.rpartition("/")[2]
        attempt = f"{node.label} at {short}: {why[:WHY_MAX]}"

        def more(one: MadeNode) -> list[Op]:
            if not one.request or not counts:
                return []
            place = self.ledger.context.map.nodes.waits(one.request).record
            entry = self.ledger.context.mirror.get(place.path)
            wait = place.decode(entry.value) if entry is not None else NodeWait(one.request)
            failed = {name: dict(of) for name, of in wait.failed.items()}
            # Failures count per node and provider, because another label of the request may work there.
            of = failed.setdefault(one.node, {})
            of[one.provider] = of.get(one.provider, 0) + 1
            return [place.put(replace(with_tries(wait, [attempt]), failed=failed))]

        await self.ledger.change(
            node.id, lambda one: replace(one, state="failed", request="", node="", build="", why=why[:WHY_MAX]), more
        )

    async def _waits(self, id: str, why: str) -> None:
        await self.ledger.change(id, lambda one: replace(one, why=why))


def _there(node: MadeNode, made: clouds.Made, secrets: Sealed | None, now_ms: int) -> MadeNode:
    """Return the record of a machine that its cloud has created; `since_ms` is now, for the time limit of the scan."""
    return replace(
        node,
        external_id=made.external_id or node.id,
        driver=dict(made.state),
        host=_host(node, made.host),
        about=dict(made.about),
        resources=dict(made.resources),
        secrets=secrets,
        since_ms=now_ms,
        why="it was created; waiting until it can be reached" if made.host is not None else "",
    )


def _host(node: MadeNode, host: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return Ansible's variables; the image's settings apply where the driver sets nothing."""
    if host is None:
        return None
    image = node.settings["image"]
    variables = {
        "ansible_connection": image.get("connection-type"),
        "ansible_port": image.get("connection-port"),
        "ansible_user": image.get("username"),
        "ansible_python_interpreter": image.get("python-path"),
        "ansible_shell_type": image.get("shell-type"),
    }
    return {**{key: value for key, value in variables.items() if value}, **host}


def believed(host: Mapping[str, Any], keys: str) -> str:
    """Return the keys that identify a machine: those that its driver knows or, if it knows none, those that answered.
    Raise MachineUnusable if none of the known keys answered."""
    known = str(host.get(clouds.HOST_KEY_VARIABLE) or "")
    # Known keys guard against a machine in the middle, and against an address that now belongs to somebody else.
    if known and not set(known.split("\n")) & set(keys.split("\n")):
        raise clouds.MachineUnusable("the host at its address does not have the key that the machine was created with")
    return known or keys


def _is_scanned(node: MadeNode) -> bool:
    host = node.host or {}
    return host.get("ansible_connection", "ssh") in SCANNED and node.settings["label"].get("host-key-checking", True)
