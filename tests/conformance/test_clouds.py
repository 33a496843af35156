"""Test what the drivers of all clouds have in common."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from headgate.ports.clouds import (
    NODE_TAG,
    SYSTEM_TAG,
    Cloud,
    CloudUnavailable,
    LaunchFailed,
    MachineSpec,
    Made,
    OverQuota,
    State,
)
from headgate.testing.clouds.aws import aws_ground
from headgate.testing.clouds.ground import LOOK_S, Entry, Ground, driving, gone, made, steps
from headgate.testing.clouds.kubernetes import kubernetes_ground
from headgate.testing.clouds.openstack import openstack_ground
from headgate.testing.servers.faults import FaultAnswer, HeldAnswer, Pass, ReceivedRequest, answers, cut, lost, unheard
from tests.tiers import STRIDE
from tests.waiting import until


def _aws(request: pytest.FixtureRequest) -> Entry:
    return aws_ground(request.getfixturevalue("s3_server"))


def _kubernetes(request: pytest.FixtureRequest) -> Entry:
    return kubernetes_ground(request.getfixturevalue("tmp_path") / "cluster")


def _openstack(request: pytest.FixtureRequest) -> Entry:
    return openstack_ground(request.getfixturevalue("nova_server"))


GROUNDS = {"aws": _aws, "kubernetes": _kubernetes, "openstack": _openstack}
"""A driver's ground: a context with everything that `Ground` names."""


@pytest.fixture(params=GROUNDS)
async def ground(request: pytest.FixtureRequest) -> AsyncIterator[Ground]:
    entry = GROUNDS[request.param](request)
    async with entry as found:
        yield found


@pytest.fixture
async def driver(ground: Ground) -> AsyncIterator[Cloud]:
    async with driving(ground) as found:
        yield found


@pytest.fixture
def wanted(ground: Ground) -> MachineSpec:
    return ground.wanted(str(uuid.uuid4()))


async def machines(ground: Ground, driver: Cloud, wanted: MachineSpec) -> list[str]:
    """Return the machines of a node as the driver lists them; assert that the cloud knows each."""
    there = await ground.everything()
    listed = await driver.resources(ground.provider)
    found = [one.id for one in listed if one.kind == ground.machine and one.tags.get(NODE_TAG) == wanted.node]
    assert set(found) <= set(there)
    return found


@pytest.mark.long
async def test_a_node_is_made_once_and_everything_of_it_has_its_tags(
    ground: Ground, driver: Cloud, wanted: MachineSpec
) -> None:
    node = await made(driver, wanted)
    there = await ground.everything()
    assert node.external_id in there
    assert all(wanted.tags.items() <= tags.items() for tags in there.values()), there
    again = await driver.advance(wanted, node.state)
    assert isinstance(again, Made) and (again.external_id, again.host) == (node.external_id, node.host)
    assert await ground.everything() == there and ground.faults.count(ground.makes) == 1


async def test_a_machine_is_found_by_its_tag_when_nothing_else_is_known(
    ground: Ground, driver: Cloud, wanted: MachineSpec
) -> None:
    node = await made(driver, wanted)
    async with driving(ground) as after_a_crash:
        assert (await made(after_a_crash, wanted, {})).external_id == node.external_id
    assert ground.faults.count(ground.makes) == 1


@pytest.mark.long
@pytest.mark.parametrize("restart", [False, True])
async def test_an_answer_that_is_lost_makes_no_second_machine(
    ground: Ground, driver: Cloud, wanted: MachineSpec, restart: bool
) -> None:
    ground.faults.once(lost, ground.makes)
    state: State = {}
    with pytest.raises(CloudUnavailable):
        while True:
            state = (await driver.advance(wanted, state)).state
    async with driving(ground) as other:
        node = await made(other, wanted, {}) if restart else await made(driver, wanted, state)
        assert await machines(ground, other, wanted) == [node.external_id]


@pytest.mark.long
async def test_removing_is_repeated_until_nothing_is_left_and_after_it(
    ground: Ground, driver: Cloud, wanted: MachineSpec
) -> None:
    node = await made(driver, wanted)
    await gone(driver, wanted, node.state)
    assert await ground.everything() == {} and await machines(ground, driver, wanted) == []
    for state in (node.state, {}):
        assert await driver.remove(wanted, state)


@pytest.mark.long
async def test_a_node_is_removed_by_its_tag_alone(ground: Ground, driver: Cloud, wanted: MachineSpec) -> None:
    await made(driver, wanted)
    async with driving(ground) as other:
        await gone(other, wanted, {})
    assert await ground.everything() == {}


@pytest.mark.long
@pytest.mark.parametrize("count", range(4))
async def test_a_node_is_removed_however_far_its_creation_has_got(
    ground: Ground, driver: Cloud, wanted: MachineSpec, count: int
) -> None:
    await gone(driver, wanted, await steps(driver, wanted, count))
    assert await ground.everything() == {}


@pytest.mark.long
async def test_the_list_of_resources_has_their_tags_owners_and_amounts(
    ground: Ground, driver: Cloud, wanted: MachineSpec
) -> None:
    theirs = await ground.foreign()
    node = await made(driver, wanted)
    listed = {one.id: one for one in await driver.resources(ground.provider)}
    assert set(await ground.everything()) <= set(listed)
    assert wanted.tags.items() <= listed[node.external_id].tags.items()
    assert listed[theirs].tags.get(SYSTEM_TAG) != wanted.tags[SYSTEM_TAG]
    expected, found = await driver.uses(wanted), dict[str, float]()
    ours = [one for one in listed.values() if one.tags.get(NODE_TAG) == wanted.node]
    for kind, amount in (pair for one in ours for pair in one.uses.items()):
        found[kind] = found.get(kind, 0.0) + amount
    assert found == expected


@pytest.mark.long
async def test_resources_of_others_are_never_deleted(ground: Ground, driver: Cloud, wanted: MachineSpec) -> None:
    theirs = await ground.foreign()
    node = await made(driver, wanted)
    await gone(driver, wanted, node.state)
    await gone(driver, wanted, {})
    assert theirs in await ground.everything()


@pytest.mark.long
async def test_unneeded_resources_are_deleted_and_missing_ones_are_not_an_error(
    ground: Ground, driver: Cloud, wanted: MachineSpec
) -> None:
    await made(driver, wanted)
    leaked = [one for one in await driver.resources(ground.provider) if one.tags.get(NODE_TAG) == wanted.node]
    for one in [*leaked, *leaked]:
        try:
            await driver.delete(ground.provider, one)
        except CloudUnavailable:
            assert one.kind != ground.machine, "what hangs on it may be asked for again"
    await gone(driver, wanted, {})
    assert await ground.everything() == {}


@pytest.mark.long
async def test_two_nodes_have_a_machine_each(ground: Ground, driver: Cloud, wanted: MachineSpec) -> None:
    other = ground.wanted(str(uuid.uuid4()))
    one, two = await asyncio.gather(made(driver, wanted), made(driver, other))
    assert one.external_id != two.external_id
    await gone(driver, wanted, one.state)
    assert await machines(ground, driver, other) == [two.external_id]


@pytest.mark.long
async def test_no_room_is_no_failure(ground: Ground, driver: Cloud, wanted: MachineSpec) -> None:
    ground.faults.once(ground.full, ground.makes)
    with pytest.raises(OverQuota):
        await made(driver, wanted)
    node = await made(driver, wanted)
    assert await machines(ground, driver, wanted) == [node.external_id]


@pytest.mark.long
async def test_a_cloud_that_asks_for_patience_says_for_how_long(
    ground: Ground, driver: Cloud, wanted: MachineSpec
) -> None:
    ground.faults.once(ground.throttled)
    with pytest.raises(CloudUnavailable) as raised:
        await made(driver, wanted)
    assert raised.value.after_s == 7
    ground.faults.once(ground.throttled, ground.makes)
    with pytest.raises(CloudUnavailable):
        await made(driver, wanted)
    await made(driver, wanted)


@pytest.mark.long
async def test_a_broken_cloud_counts_as_unavailable_and_never_as_a_failed_node(
    ground: Ground, driver: Cloud, wanted: MachineSpec
) -> None:
    for fault in (ground.away, unheard, lost, cut):
        for which in (ground.lists, ground.makes):
            ground.faults.once(fault, which)
            with pytest.raises(CloudUnavailable):
                await made(driver, wanted)
            if which == ground.makes:
                await gone(driver, wanted, {})
            ground.faults.mend()
            wanted = ground.wanted(str(uuid.uuid4()))
    assert await ground.everything() == {}


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"null", b"<a/>", b"<a><b/></a>", b"\xff\x00"])
async def test_a_malformed_answer_of_a_cloud_counts_as_no_answer(
    ground: Ground, driver: Cloud, wanted: MachineSpec, body: bytes
) -> None:
    ground.faults.always(answers(200, body))
    for call in (driver.advance(wanted, {}), driver.remove(wanted, {})):
        with pytest.raises((CloudUnavailable, LaunchFailed)):
            await call
    with suppress(CloudUnavailable, LaunchFailed):  # there may be no limits to read
        await driver.uses(wanted)
    with pytest.raises(CloudUnavailable):
        await driver.resources(ground.provider)
    with suppress(CloudUnavailable):
        assert await driver.limits(ground.provider) == {}


@pytest.mark.long
async def test_an_incomplete_list_counts_as_no_answer(ground: Ground, driver: Cloud, wanted: MachineSpec) -> None:
    node = await made(driver, wanted)
    for fault in (cut, ground.away, ground.throttled, ground.refused, lost):
        ground.faults.once(fault, ground.lists)
        with pytest.raises(CloudUnavailable):
            await driver.resources(ground.provider)
        ground.faults.once(fault, ground.lists)
        with pytest.raises(CloudUnavailable):
            await driver.remove(wanted, node.state)
    assert await machines(ground, driver, wanted) == [node.external_id]


@pytest.mark.long
async def test_a_resource_that_cannot_be_deleted_affects_no_other(
    ground: Ground, driver: Cloud, wanted: MachineSpec
) -> None:
    """If it counted as unreachable, the complete account would be left alone, again and again."""
    node = await made(driver, wanted)
    (found,) = [
        one
        for one in await driver.resources(ground.provider)
        if one.kind == ground.machine and one.tags.get(NODE_TAG) == wanted.node
    ]
    removes = ("DELETE", b"TerminateInstances")
    for call in (lambda: driver.remove(wanted, node.state), lambda: driver.delete(ground.provider, found)):
        ground.faults.once(
            ground.refused, lambda received: received.method == removes[0] or removes[1] in received.body
        )
        with pytest.raises(LaunchFailed, match="the moon is full"):
            await call()
    await gone(driver, wanted, node.state)


async def test_a_machine_that_the_cloud_refuses_fails_with_the_message_of_the_cloud(
    ground: Ground, driver: Cloud, wanted: MachineSpec
) -> None:
    ground.faults.once(ground.refused, ground.makes)
    with pytest.raises(LaunchFailed, match="the moon is full"):
        await made(driver, wanted)
    with pytest.raises(LaunchFailed):
        await made(driver, ground.impossible(str(uuid.uuid4())))
    assert await ground.everything() == {}


@pytest.mark.long
async def test_a_call_that_is_given_up_leaves_nothing_that_is_not_found(
    ground: Ground, driver: Cloud, wanted: MachineSpec
) -> None:
    stuck = HeldAnswer()
    ground.faults.once(stuck, ground.makes)
    task = asyncio.ensure_future(made(driver, wanted))
    await stuck.done.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    stuck.go.set()
    node = await made(driver, wanted)
    assert await machines(ground, driver, wanted) == [node.external_id]


class Crash(BaseException):
    """Represent the death of the process."""


async def _until_a_crash(
    ground: Ground, driver: Cloud, wanted: MachineSpec, stored: dict[str, str], number: int
) -> str:
    """Make and remove a node until the answer to request `number` would come, and keep the state as a store does.
    Return the phase in progress; empty if everything was done. A request that repeats the previous one does not
    count."""
    stuck, calls, last, doing = HeldAnswer(), 0, ("", "", b""), "making"

    def which(received: ReceivedRequest) -> bool:
        nonlocal calls, last
        calls, last = (
            calls + ((received.method, received.path, received.body) != last),
            (received.method, received.path, received.body),
        )
        return calls == number

    async def advanced() -> bool:
        step = await driver.advance(wanted, dict(stored))
        stored.clear()
        stored.update(step.state)
        return isinstance(step, Made)

    async def life() -> None:
        nonlocal doing
        await until("it is made", advanced, every_s=LOOK_S)
        doing = "removing"
        await gone(driver, wanted, dict(stored))

    ground.faults.once(stuck, which)
    living, broken = asyncio.ensure_future(life()), asyncio.ensure_future(stuck.done.wait())
    await asyncio.wait([living, broken], return_when=asyncio.FIRST_COMPLETED)
    doing = "" if living.done() else doing
    for one in (living, broken):
        one.cancel()
    stuck.go.set()
    await asyncio.gather(living, broken, return_exceptions=True)
    ground.faults.mend()
    return doing


@pytest.mark.long
async def test_the_next_process_finds_the_machine_after_a_crash_between_any_two_calls(ground: Ground) -> None:
    """A process dies at each request of a life: the request is done, its answer is lost, and the state is the one
    before it.  Its successor removes the node, or continues to make it."""
    number, doing = 1 - STRIDE, "making"
    while doing:
        number += STRIDE
        wanted = ground.wanted(str(uuid.uuid4()))
        driver: dict[str, str] = {}
        async with driving(ground) as first:
            doing = await _until_a_crash(ground, first, wanted, driver, number)
        async with driving(ground) as second:
            found = await machines(ground, second, wanted)
            assert len(found) <= 1
            if number % 2 and doing == "making":
                made_at_last = await made(second, wanted, {} if not found else driver)
                assert await machines(ground, second, wanted) == [made_at_last.external_id]
            await gone(second, wanted, driver)
        assert await ground.everything() == {}, number
    assert number > 3


async def test_limits_are_amounts_and_a_cloud_without_an_answer_is_unavailable(ground: Ground, driver: Cloud) -> None:
    limits = await driver.limits(ground.provider)
    assert all(isinstance(amount, int | float) for amount in limits.values())
    ground.faults.always(unheard)
    for call in (
        driver.resources,
        *([driver.limits] if limits else []),
    ):  # a cloud without limits sends no request for them
        with pytest.raises(CloudUnavailable):
            await call(ground.provider)


@pytest.mark.long
async def test_credentials_of_the_account_are_in_no_log_and_no_error(
    ground: Ground, driver: Cloud, wanted: MachineSpec, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    texts = [repr(driver), repr(vars(driver))]
    for fault in (ground.refused, ground.throttled, ground.away, cut):
        ground.faults.once(fault, ground.makes)
        with pytest.raises((CloudUnavailable, LaunchFailed, OverQuota)) as raised:
            await made(driver, wanted)
        texts.append(repr(raised.value))
    await made(driver, wanted)
    texts.append(caplog.text)
    assert not [secret for secret in ground.secrets for text in texts if secret in text]


async def _echo(received: ReceivedRequest, go_on: Pass) -> FaultAnswer | None:
    body = b"".join(f"{name}: {value}\n".encode() for name, value in received.headers.items()) + received.body
    return FaultAnswer(418, body, {})


async def test_errors_contain_no_secrets_even_if_the_server_echoes_its_requests(
    ground: Ground, driver: Cloud, wanted: MachineSpec
) -> None:
    ground.faults.always(_echo)
    with pytest.raises((CloudUnavailable, LaunchFailed)) as raised:
        await made(driver, wanted)
    assert not [secret for secret in ground.secrets if secret in str(raised.value)]
