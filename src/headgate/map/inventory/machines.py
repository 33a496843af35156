"""Machines that are made when they are needed: what is known of each, and of who waits for one."""

from __future__ import annotations

from typing import Any

import msgspec

from headgate.config.machines import FlatProvider
from headgate.gate.returns.secrets import Sealed
from headgate.map.tree import Dir, each, place

FREE = ("ready", "building", "requested")
"""States in which a machine can be given to whoever asks, the best first."""
ARRIVING = ("registering", "rebuilding")
"""States of machines that are there anyway, while nobody knows whether they answer."""
ENDING = ("used", "failed", "outdated")
"""States of machines that are taken away."""


class MadeNode(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Record a machine, from before its cloud is called until nothing is left there."""

    id: str
    provider: str
    """Canonical."""
    connection: str
    label: str
    """The provider's name of the label; the build may have used an alias."""
    state: str = "requested"
    """requested | building | ready | in-use | used | failed | outdated | hold; of what is there anyway also
    registering, until it answers, and rebuilding, after each build; of one with slots slot-host in the place of ready
    and in-use"""
    said: dict[str, Any] = {}
    """What it is made of: label, image, flavor, and the other keys of the provider, also when they are gone there."""
    digest: str = ""
    tags: dict[str, str] = {}
    uses: dict[str, float] = {}
    """What it takes of its account."""
    driver: dict[str, str] = {}
    """How far it is, in words of its driver."""
    why: str = ""
    """What it waits for, or what went wrong."""
    tenant: str = ""
    """The tenant that it was made for."""
    project: str = ""
    request: str = ""
    """The request that it belongs to, or empty."""
    node: str = ""
    """What that calls it."""
    build: str = ""
    asked_ms: int = 0
    since_ms: int = 0
    """When it came to be in this state."""
    begun_ms: int = 0
    """When its cloud was first asked."""
    served: int = 0
    """Builds that had it."""
    external_id: str = ""
    host: dict[str, Any] | None = None
    """Variables of Ansible, once it is there; None: it is not a host."""
    about: dict[str, Any] = {}
    resources: dict[str, Any] = {}
    secrets: Sealed | None = None
    comment: str = ""
    """Why it is held."""
    until_ms: int = 0
    """How long it is held; 0: until somebody gives it back."""
    fixed: bool = False
    """Whether it is there anyway: it is neither made nor removed."""
    slot: int | None = None
    """Which of the builds it is that a machine has at a time, where there may be several."""
    slots: int = 0
    """How many builds a machine serves at a time. The machine itself is given to none: its slots are, each a node of
    its own."""
    opened: int = 0
    """How many of them were ever written down."""
    main: str = ""
    """The machine of a slot."""
    share: dict[str, float] = {}
    """The part of the machine's resources that a slot takes, which counts for its tenant."""


class NodeWait(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record why a request has no machines yet."""

    request: str
    why: str = ""
    since_ms: int = 0
    """When that became the reason."""
    tried: tuple[str, ...] = ()
    """What went wrong so far, in order."""
    failed: dict[str, dict[str, int]] = {}
    """Name of a node -> provider -> how often it failed there."""
    at: str = ""
    """The provider where it waits for room."""
    room_ms: int = 0
    """Since when it has waited for room."""
    held: int = 0
    """The most of its machines that it had, or could have had, while it waits for room that others use."""
    held_ms: int = 0
    """Since when it has had so many, and got no further."""
    gave: int = 0
    """How often it gave them back."""
    again_ms: int = 0
    """When it asks again."""


class NodeOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record what a person wants done with a machine."""

    state: str
    """hold | used | outdated"""
    comment: str = ""
    until_ms: int = 0
    """Until when it is held at most, as releases without `hold_s` read it."""
    by: str = ""
    hold_s: int = 0
    """How long it is held, from when no build uses it; 0 means until `until_ms`."""


class Installation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Identify what belongs to this installation in accounts that others use, too."""

    id: str
    terms: tuple[str, ...] = ()
    """The terms of its launchers, the newest last."""


class NodeAccount(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Record an account in which machines were made. It is watched until nothing of ours is left there, whatever the
    configuration says by then."""

    connection: str
    region: str = ""
    said: dict[str, Any] = {}
    """What its driver is told, of a provider there."""
    lacking_ms: int = 0
    """Since when the launcher's settings lack the connection; 0 means they have it."""
    strange: tuple[str, ...] = ()
    """Machines there that have our tag and are none of ours: another installation has the same store, or a copy."""
    strange_ms: int = 0
    given_up: str = ""
    """The person who gave the account up."""


class ProviderPlace(Dir):
    """Hold one provider."""

    record = place(
        FlatProvider, "What machines are made there, as the tenant's configuration says it.", by="scheduler", own=True
    )


class TenantProviders(Dir):
    """Hold the providers of one tenant."""

    provider = each(ProviderPlace, key="provider", bare=True)


class MadePlace(Dir):
    """Hold one machine."""

    record = place(
        MadeNode,
        "A machine that was made, written before anything is asked of its cloud; gone once nothing is left of it.",
        by="launcher",
        own=True,
    )


class WaitPlace(Dir):
    """Hold the reason why one request waits."""

    record = place(NodeWait, "Why it waits, and what was tried.", by="launcher", own=True)


class OrderPlace(Dir):
    """Hold the order for one machine."""

    record = place(NodeOrder, "What somebody wants done with it.", by="web, launcher", own=True)


class AccountPlace(Dir):
    """Hold one account in one region."""

    record = place(
        NodeAccount,
        "Where machines were made; gone once neither a provider nor anything of ours is there.",
        by="launcher, web",
        own=True,
    )
