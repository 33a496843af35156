"""Define the shapes of machines and of requests for them."""

from __future__ import annotations

from typing import Any

import msgspec


class NodeShape(msgspec.Struct, frozen=True, kw_only=True):
    """Describe a machine that a build of the tenant has, or that is made for the tenant."""

    id: str
    uuid: str
    type: tuple[str, ...]
    """Its labels."""
    label: str
    state: str
    """requested | building | slot-host | ready | in-use | used | failed | outdated | hold"""
    state_time: str
    """When it entered this state; for a machine of the inventory, when it was requested, or the present time if that is
    unknown.
    """
    next_state: str | None = None
    comment: str | None = None
    """The build that uses the machine."""
    connection_type: str | None = None
    external_id: str | None = None
    provider: str | None = None
    cloud: str | None = None
    region: str | None = None
    az: str | None = None
    username: str | None = None
    interface_ip: str | None = None
    public_ipv4: str | None = None
    private_ipv4: str | None = None
    public_ipv6: str | None = None
    private_ipv6: str | None = None
    slot: int | None = None
    quota: dict[str, Any] = {}
    max_age: int | None = None
    max_ready_age: int | None = None
    hold_expiration: int | None = None
    is_locked: bool = True
    lock_holder: str | None = None
    """Host of the executor."""
    request_id: str | None = None
    request_time: str | None = None
    main_node_id: str | None = None
    """For a slot, the machine that it belongs to."""
    why: str | None = None
    """What the machine waits for, or what went wrong. Headgate only."""


class RequestShape(msgspec.Struct, frozen=True, kw_only=True):
    """Describe a build that waits for machines, or has them."""

    uuid: str
    state: str
    """requested | fulfilled"""
    pipeline_name: str
    buildset_uuid: str
    job_name: str
    labels: tuple[str, ...]
    priority: int
    """Requests with a lower number go first."""
    relative_priority: int = 0
    request_time: str
    zuul_event_id: str
    image_names: tuple[str, ...] = ()
    image_upload_uuid: str | None = None
    provider_node_data: tuple[dict[str, Any], ...]
    """Objects with uuid, executor_zone and failed_providers, one for each machine."""
    is_locked: bool = False
    lock_holder: str | None = None
    position: int | None = None
    """The position among the waiting requests. Headgate only."""
    why: str | None = None
    """Why it waits. Headgate only."""
    why_since: str | None = None
    """When it began to wait for that reason. Headgate only."""
    tried: tuple[str, ...] = ()
    """What went wrong so far. Headgate only."""
