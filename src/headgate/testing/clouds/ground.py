"""Declare what a cloud must provide for the test suite of all drivers, and the steps of that suite."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from headgate.ports.clouds import Cloud, MachinePending, MachineSpec, Made, State
from headgate.testing.clock import DEADLINE_S
from headgate.testing.servers.faults import Fault, Faults, ReceivedRequest

LOOK_S = 0.1


class Ground(Protocol):
    """Provide a cloud, with an account that only one test uses."""

    faults: Faults
    """Faults in front of the cloud."""
    provider: Mapping[str, Any]
    machine: str
    """Kind of resource of a machine, in the driver's terms."""
    full: Fault
    """Answer of a cloud that has no capacity for another machine."""
    throttled: Fault
    """Answer to too many requests: retry in 7 s."""
    refused: Fault
    """Refusal to make a machine, whose reason contains `the moon is full`."""
    away: Fault
    """Answer while a part of the cloud is broken."""
    secrets: list[str]
    """Credentials of the account."""

    def driver(self) -> Cloud:
        """Return a driver without any state, as after a restart."""
        ...

    def wanted(self, node: str) -> MachineSpec:
        """Return the specification of a node of this installation."""
        ...

    def impossible(self, node: str) -> MachineSpec:
        """Return a node whose image does not exist."""
        ...

    def makes(self, request: ReceivedRequest) -> bool:
        """Return whether a request makes a machine."""
        ...

    def lists(self, request: ReceivedRequest) -> bool:
        """Return whether a request reads a list of machines."""
        ...

    async def everything(self) -> dict[str, Mapping[str, str]]:
        """Return the resources made since the test began, id -> tags, as the cloud lists them, not the driver."""
        ...

    async def foreign(self) -> str:
        """Make a machine in the account that another program owns, and return its id."""
        ...


Entry = AbstractAsyncContextManager[Ground]


async def made(driver: Cloud, wanted: MachineSpec, state: State | None = None) -> Made:
    """Advance until the node exists."""
    reported: State = state or {}
    end_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < end_s:
        step = await driver.advance(wanted, reported)
        if isinstance(step, Made):
            return step
        # Only a step without progress is followed by a pause; otherwise tests would wait for nothing.
        if step.state == reported:
            await asyncio.sleep(LOOK_S)
        reported = step.state
    raise AssertionError(f"it was not made: {reported}")


async def steps(driver: Cloud, wanted: MachineSpec, count: int) -> State:
    """Advance at most `count` steps; return the state after them."""
    state: State = {}
    for _ in range(count):
        step: MachinePending | Made = await driver.advance(wanted, state)
        state = step.state
    return state


async def gone(driver: Cloud, wanted: MachineSpec, state: State) -> None:
    """Advance until nothing is left of the node."""
    end_s = time.monotonic() + DEADLINE_S
    while not await driver.remove(wanted, state):
        assert time.monotonic() < end_s, "it does not go"
        await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def driving(ground: Ground) -> AsyncIterator[Cloud]:
    """Provide a driver, and close it."""
    driver = ground.driver()
    try:
        yield driver
    finally:
        await driver.close()
