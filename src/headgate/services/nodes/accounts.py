"""Call clouds within the rate limit of each, run such calls concurrently, and permit only machines that may be used."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from msgspec.structs import replace

from headgate.base.tasks import end
from headgate.config.machines import FlatLabel, FlatProvider
from headgate.map.inventory.nodes import MadeNode
from headgate.ports import clouds

log = logging.getLogger("headgate.launcher")
T = TypeVar("T")

CALL_MAX_S = 60.0
"""Time after which a call counts as unanswered."""
QUIET_FIRST_S, QUIET_MAX_S = 1.0, 60.0
"""First and longest time for which a cloud that did not answer gets no calls; it doubles with every failure."""
# Reading the limits costs a call, which counts towards the same rate as the calls that create machines.
LIMITS_VALID_S = 300.0
HUNT_S = 60.0
"""Interval between two listings of everything in an account."""
WHY_MAX = 300
"""Limit on the stored characters of a cloud's messages."""
ERRANDS_MAX = 50
"""Limit on the concurrent errands of one connection, so that a slow cloud does not delay other connections."""
AWAY_MIN_S = 1.0
Work = Coroutine[Any, Any, float | None]
"""Returns the seconds after which the errand is due again."""


class CloudAccount:
    """Call the cloud of one connection; all callers share one rate limit."""

    def __init__(self, name: str, cloud: clouds.Cloud, rate: float) -> None:
        """Create an account. Call `cloud` at most `rate` times per second; 0: without a limit."""
        self.name, self.cloud = name, cloud
        self._gap_s = 1 / rate if rate > 0 else 0.0
        self._turn_s = self._quiet_until_s = self._quiet_s = 0.0
        self._away = ""

    @property
    def away(self) -> str:
        """Return why the cloud gets no calls now; empty if it does."""
        return self._away if self.back_s > asyncio.get_running_loop().time() else ""

    @property
    def back_s(self) -> float:
        """Return the time from which the cloud gets calls again, in the loop's time."""
        return self._quiet_until_s

    async def ask(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call the cloud, and return the result. Raise LaunchFailed, OverQuota, CloudUnavailable; any other error of a
        driver counts as no answer."""
        self._check()
        now_s = asyncio.get_running_loop().time()
        # Each caller takes the next free time slot, so the order is fair without a queue; a cancelled caller only
        # leaves a gap.
        self._turn_s = max(now_s, self._turn_s + self._gap_s)
        if self._turn_s > now_s:
            await asyncio.sleep(self._turn_s - now_s)
            # The cloud may have become unavailable while this call waited for its time slot.
            self._check()
        try:
            async with asyncio.timeout(CALL_MAX_S):
                found = await call()
        # A refusal is also an answer, so the cloud is available.
        except (clouds.LaunchFailed, clouds.OverQuota):
            self._answered()
            raise
        except clouds.CloudUnavailable as away:
            raise self._quiet(str(away), away.after_s) from away
        # The request may have been carried out nevertheless; the driver then finds the resource by its tags.
        except TimeoutError as late:
            raise self._quiet(f"no answer in {CALL_MAX_S:.0f} s") from late
        except Exception as error:
            log.exception("connection %s: its driver failed", self.name)
            raise self._quiet(f"its driver failed: {error}") from error
        self._answered()
        return found

    def _check(self) -> None:
        """Raise CloudUnavailable while the cloud gets no calls."""
        if (left_s := self._quiet_until_s - asyncio.get_running_loop().time()) > 0:
            raise clouds.CloudUnavailable(self._away, left_s)

    def _answered(self) -> None:
        self._quiet_s, self._away = 0.0, ""

    def _quiet(self, why: str, after_s: float = 0.0) -> clouds.CloudUnavailable:
        now_s = asyncio.get_running_loop().time()
        # Many calls may fail together when a cloud becomes unavailable; these count as one failure.
        if now_s >= self._quiet_until_s:
            self._quiet_s = min(2 * self._quiet_s or QUIET_FIRST_S, QUIET_MAX_S)
        self._quiet_until_s = max(self._quiet_until_s, now_s + max(self._quiet_s, after_s))
        self._away = f"the connection {self.name} is unavailable: {why[:WHY_MAX]}"
        return clouds.CloudUnavailable(self._away, self._quiet_until_s - now_s)


@dataclass(slots=True)
class AccountRegion:
    """Hold the known facts about one account in one region: its limits, other users' amounts, and unknown resources."""

    limits: clouds.Amounts = field(default_factory=dict)
    others: clouds.Amounts = field(default_factory=dict)
    """Amounts that foreign resources use in the account."""
    limits_until_s: float = 0.0
    look_at_s: float = 0.0
    suspects: frozenset[str] = frozenset()
    """Our resources that had no record at the last listing."""

    @property
    def is_read(self) -> bool:
        """Return whether the account's limits were ever read."""
        return self.limits_until_s > 0


def region_of(provider: Mapping[str, Any]) -> str:
    """Return the part of an account that a provider is in."""
    return str(provider.get("region", ""))


@dataclass(frozen=True, slots=True)
class Ours:
    """Determine which resources of an account belong to this installation."""

    system: str
    made: Callable[[clouds.Resource], bool]
    """Returns whether a launcher of this installation created the resource, which has our tag."""
    known: Callable[[], set[str]]
    """Returns the ids of the recorded machines."""


@dataclass(frozen=True, slots=True)
class AccountSurvey:
    """Hold the result of listing one account."""

    ours: int
    strange: frozenset[str]
    """Resources that have our tag but that another installation created."""


class Hunting:
    """List entire accounts: determine their use, and which of our resources are no longer known."""

    def __init__(self, accounts: Mapping[str, CloudAccount]) -> None:
        self._accounts = accounts
        self.places: dict[tuple[str, str], AccountRegion] = {}
        """Accounts by connection and region."""
        self._uses: dict[tuple[str, str], clouds.Amounts | str] = {}
        """(provider, digest) -> amounts that one node takes, or why it cannot be created."""

    def place(self, connection: str, provider: Mapping[str, Any]) -> AccountRegion:
        return self.places.setdefault((connection, region_of(provider)), AccountRegion())

    def uses(self, provider: str, digest: str) -> clouds.Amounts | str | None:
        """Return the known amounts of a node; None if they have not been requested yet."""
        return self._uses.get((provider, digest))

    async def learn(self, connection: str, provider: str, digest: str, wanted: clouds.MachineSpec) -> None:
        """Request the amounts that one such node takes. Raise CloudUnavailable."""
        account = self._accounts[connection]
        try:
            self._uses[provider, digest] = await account.ask(lambda: account.cloud.uses(wanted))
        except (clouds.LaunchFailed, clouds.OverQuota) as error:
            self._uses[provider, digest] = str(error)[:WHY_MAX]

    def forget(self) -> None:
        """Forget errors, so that nodes that could not be created are tried again: somebody may have fixed the cause."""
        self._uses = {key: found for key, found in self._uses.items() if not isinstance(found, str)}

    async def look(self, connection: str, provider: Mapping[str, Any], ours: Ours) -> AccountSurvey:
        """List one entire account, and delete our resources that had no record at two listings. Raise CloudUnavailable,
        LaunchFailed."""
        account, place = self._accounts[connection], self.place(connection, provider)
        found = await account.ask(lambda: account.cloud.resources(provider))
        tagged = [one for one in found if one.tags.get(clouds.SYSTEM_TAG) == ours.system]
        # The records are read after the listing, because every listed resource had its record before it was created.
        nodes = ours.known()
        mine = [one for one in tagged if one.tags.get(clouds.NODE_TAG) in nodes or ours.made(one)]
        strange = {_key(one) for one in tagged} - set(map(_key, mine))
        own = set(map(_key, mine))
        place.others = total(one.uses for one in found if _key(one) not in own)
        lost = [one for one in mine if one.tags.get(clouds.NODE_TAG) not in nodes]
        # One listing is not enough, because a record may be deleted shortly before the cloud stops listing the machine.
        again, place.suspects = place.suspects, frozenset(map(_key, lost))
        for one in (one for one in lost if _key(one) in again):
            log.warning("connection %s: %s %s has no record; deleting it", connection, one.kind, one.id)
            try:
                await account.ask(lambda one=one: account.cloud.delete(provider, one))  # type: ignore[misc]
            except (clouds.LaunchFailed, clouds.OverQuota) as error:
                log.warning("connection %s: %s %s cannot be deleted: %s", connection, one.kind, one.id, error)
        now_s = asyncio.get_running_loop().time()
        # Limits are read last, so that lost resources are found even if the limits cannot be read.
        if now_s >= place.limits_until_s:
            place.limits = await account.ask(lambda: account.cloud.limits(provider))
            place.limits_until_s = now_s + LIMITS_VALID_S
        return AccountSurvey(len(mine), frozenset(strange))


def _key(one: clouds.Resource) -> str:
    return f"{one.kind}/{one.id}"


def total(several: Iterable[clouds.Amounts]) -> dict[str, float]:
    """Return the sum of each kind."""
    found: dict[str, float] = {}
    for uses in several:
        for kind, much in uses.items():
            found[kind] = found.get(kind, 0.0) + much
    return found


def wanted_of(node: MadeNode) -> clouds.MachineSpec:
    """Return the driver's description of a machine, as at the time of its creation."""
    description = node.settings
    return clouds.MachineSpec(
        node.id, description["label"], description["image"], description["flavor"], description["provider"], node.tags
    )


class Errands:
    """Run tasks concurrently until `end`."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[float | None]] = {}
        self._due: dict[str, float] = {}
        """Errand -> time from which it may start again, in the loop's time."""
        self._under_way = Counter[str]()
        """Connection -> number of running errands."""

    def begin(self, key: str, connection: str, work: Callable[[], Work]) -> None:
        """Start the errand unless it is running or not due, or the connection has too many."""
        due = self._due.get(key, 0.0) <= asyncio.get_running_loop().time()
        if due and key not in self._tasks and self._under_way[connection] < ERRANDS_MAX:
            self._under_way[connection] += 1
            self._tasks[key] = asyncio.ensure_future(self._run(connection, work))

    async def _run(self, connection: str, work: Callable[[], Work]) -> float | None:
        try:
            return await work()
        except clouds.CloudUnavailable as away:
            return max(AWAY_MIN_S, away.after_s)
        finally:
            self._under_way[connection] -= 1

    def ended(self) -> None:
        """Collect the errands that have ended. Raise the error of one that failed."""
        for key in [key for key, task in self._tasks.items() if task.done()]:
            pause_s = self._tasks.pop(key).result()
            # The pause starts at the end of an errand, so that a slow cloud is not called without a break.
            self._due[key] = asyncio.get_running_loop().time() + (pause_s or 0.0)

    def forget(self, gone: Callable[[str], bool]) -> None:
        """Forget errands that will not start again."""
        for key in [key for key in self._due if gone(key)]:
            del self._due[key]

    async def wait(self, moved: asyncio.Future[int], ends_s: list[float], limit_s: float) -> None:
        """Wait for `moved`, for the end of an errand, for one that becomes due, or until `ends_s` (in the loop's
        time)."""
        now_s = asyncio.get_running_loop().time()
        due = [due_s - now_s for due_s in (*self._due.values(), *ends_s) if due_s > now_s]
        waits: list[asyncio.Future[Any]] = [moved, *self._tasks.values()]
        try:
            await asyncio.wait(waits, timeout=min([limit_s, *due]), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Only this future belongs to the wait; the errands continue.
            await end(moved)

    async def end(self) -> None:
        """Cancel all errands, and wait until they have ended."""
        await end(*self._tasks.values())


class Permitted:
    """Decide for one launcher which machines are permitted, and log each refusal once."""

    def __init__(self, accounts: Mapping[str, CloudAccount]) -> None:
        self._accounts = accounts
        self._logged = frozenset[str]()

    def of(self, providers: Mapping[str, Sequence[FlatProvider]]) -> dict[str, list[FlatProvider]]:
        """Return the providers of each tenant with only those machines that may be used."""
        refused = set[str]()
        found = {tenant: [self._with(one, refused) for one in several] for tenant, several in providers.items()}
        for why in sorted(refused - self._logged):
            log.warning("%s", why)
        self._logged = frozenset(refused)
        return found

    def _with(self, provider: FlatProvider, refused: set[str]) -> FlatProvider:
        permitted = []
        for host in provider.hosts:
            why = self._refusal(provider, host)
            if why:
                refused.add(f"provider {provider.name}: {why}")
            else:
                permitted.append(host)
        return replace(provider, hosts=tuple(permitted)) if len(permitted) < len(provider.hosts) else provider

    def _refusal(self, provider: FlatProvider, host: Mapping[str, Any]) -> str:
        account = self._accounts.get(provider.connection)
        # A driver without such a rule permits everything.
        if account is None or not isinstance(account.cloud, clouds.MachineListing):
            return ""
        return account.cloud.refusal(provider.projects, host)

    def why(self, provider: FlatProvider, label: FlatLabel) -> str:
        """Return why a provider may not use any of its listed machines of a label; empty if it may, or lists none."""
        refused = ""
        for host in provider.hosts:
            if label.name == host.get("label") or set(label.names) & set(_aliases(host)):
                why = self._refusal(provider, host)
                if not why:
                    return ""
                refused = refused or why
        return refused


def _aliases(host: Mapping[str, Any]) -> Sequence[str]:
    aliases = host.get("aliases") or ()
    return [aliases] if isinstance(aliases, str) else aliases
