"""Provide nodes for tests of the driver, and helpers that make them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headgate.adapters.nodes.clouds.kubernetes.driver import Kubernetes
from headgate.adapters.nodes.clouds.kubernetes.kubeconfig import read
from headgate.ports.clouds import NODE_TAG, SYSTEM_TAG, MachinePending, MachineSpec, Made, State
from headgate.testing.servers.kubernetes.server import FakeKubernetesServer

NODE = "6f1d2c3b4a5948478685f0e1d2c3b4a5"
SPACE = f"np-{NODE}"
MACHINE: dict[str, Any] = {"containers": [{"name": "main", "image": "machine:1", "command": ["sleep", "1000"]}]}
STEPS_MAX = 30


@dataclass(slots=True)
class Clock:
    now_s: float = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def driver_of(cluster: FakeKubernetesServer, clock: Clock | None = None, **more: Any) -> Kubernetes:
    """Return a driver that reads the cluster's kubeconfig."""
    return Kubernetes(read([cluster.kubeconfig()], ""), now_s=clock or Clock(), **more)


def pod(spec: Mapping[str, Any] = MACHINE, node: str = NODE, **label: Any) -> MachineSpec:
    """Return a node that is a pod."""
    tags = {SYSTEM_TAG: "9f0e", NODE_TAG: node, "team": "blue & green"}
    label = {"name": "small", "kind": "pod", "spec": spec, **label}
    return MachineSpec(node, label, {"name": "any"}, {}, {"name": "site"}, tags)


def namespace(node: str = NODE) -> MachineSpec:
    """Return a node that is a namespace."""
    return MachineSpec(node, {"name": "space", "kind": "namespace"}, {}, {}, {}, {SYSTEM_TAG: "9f0e", NODE_TAG: node})


async def made(driver: Kubernetes, wanted: MachineSpec, state: State | None = None) -> Made:
    """Continue until it exists."""
    found: MachinePending | Made = MachinePending(state or {}, "")
    for _ in range(STEPS_MAX):
        found = await driver.advance(wanted, found.state)
        if isinstance(found, Made):
            return found
        await asyncio.sleep(0)
    raise AssertionError(f"it was not made: {found}")


async def gone(driver: Kubernetes, wanted: MachineSpec) -> None:
    """Continue until it is gone."""
    for _ in range(STEPS_MAX):
        if await driver.remove(wanted, {}):
            return
    raise AssertionError("it does not go")
