"""Test containers as machines: made once, reached over ssh with a key known in advance, limited, and removed
afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from headgate.adapters.nodes.clouds.podman import guest
from headgate.adapters.nodes.clouds.podman.driver import Podman
from headgate.adapters.nodes.clouds.podman.engine import complaint
from headgate.ports.clouds import HOST_KEY_VARIABLE, NODE_TAG, SYSTEM_TAG, LaunchFailed, MachinePending, Made
from tests.integration.podman.ground import NEEDS, Site, machine, site

pytestmark = NEEDS


@pytest.fixture(scope="module")
def here() -> Iterator[Site]:
    with site() as found:
        yield found


@pytest.fixture
async def driver(here: Site) -> AsyncIterator[Podman]:
    found = here.driver()
    yield found
    for node in ("n1", "n2"):
        while not await found.remove(machine(node), {}):
            pass
    await found.close()


@pytest.mark.long
async def test_a_machine_is_made_once_reached_by_its_key_limited_and_removed(here: Site, driver: Podman) -> None:
    wanted = machine()
    node = await driver.advance(wanted, {})
    assert isinstance(node, Made) and node.host is not None
    status, text = await here.ssh(node, "id -u; cat /proc/self/uid_map")
    assert status == 0 and text.split()[0] == "0" and int(text.split()[2]) >= 1_901_000_000, text
    limits = here.podman("inspect", node.external_id, "--format", "{{.HostConfig.Memory}} {{.HostConfig.PidsLimit}}")
    assert limits.split() == [str(128 << 20), "100"]

    again = here.driver()  # as after a crash
    assert await again.advance(wanted, {}) == node
    assert here.podman("ps", "-a", "--format", "{{.Names}}").split() == [node.external_id]
    found = {one.kind: one for one in await again.resources({}) if one.tags.get(NODE_TAG) == "n1"}
    assert set(found) == {"container", "network"} and {one.tags[SYSTEM_TAG] for one in found.values()} == {"9f0e"}
    assert found["container"].uses == await again.uses(wanted)
    other = await again.advance(machine("n2"), {})
    assert isinstance(other, Made) and other.host is not None
    assert other.host["ansible_host"] != node.host["ansible_host"]
    assert other.host[HOST_KEY_VARIABLE] != node.host[HOST_KEY_VARIABLE]

    while not await again.remove(wanted, {}):
        pass
    assert [one.tags[NODE_TAG] for one in await again.resources({})] == ["n2", "n2"]
    await again.close()


@pytest.mark.long
async def test_an_unfinished_container_of_a_crash_is_replaced(here: Site, driver: Podman) -> None:
    here.podman("create", "--name=headgate-n1", "--network=none", "localhost/machine:1", "sleep", "1")
    node = await driver.advance(machine(), {})
    assert isinstance(node, Made) and (await here.ssh(node, "true"))[0] == 0


@pytest.mark.long
async def test_a_lease_that_podman_left_keeps_nobody_from_the_address(here: Site, driver: Podman) -> None:
    left = guest.LEASES / guest.network(0)
    left.mkdir(parents=True, exist_ok=True)
    (left / str(guest.subnet(0)[2])).write_text(f"{'a' * 64}\r\neth0")
    node = await driver.advance(machine(), {})
    assert isinstance(node, Made) and (await here.ssh(node, "true"))[0] == 0


def test_warnings_do_not_hide_the_error() -> None:
    warning = 'time="2026-01-01" level=warning msg="Failed to load cached network config"'
    assert complaint(f"{warning}\nError: no address\n{warning}\n") == "Error: no address"
    assert complaint(warning) == warning


@pytest.mark.long
async def test_an_image_that_cannot_be_fetched_or_started_fails_with_podmans_message(
    here: Site, driver: Podman
) -> None:
    absent = machine(image="127.0.0.1:1/none:1")
    step = await driver.advance(absent, {})
    assert isinstance(step, MachinePending) and "podman is fetching" in step.why
    with pytest.raises(LaunchFailed, match=r"the image 127.0.0.1:1/none:1 cannot be fetched: .*refused"):
        while isinstance(await driver.advance(absent, {}), MachinePending):
            pass
    for wanted, words in (
        (machine(ram=1), "has invalid limits"),
        (machine(cores="many"), "has invalid limits"),
        (machine(image=""), "needs an image-id"),
        (machine("../x"), "is not valid for a container"),
    ):
        with pytest.raises(LaunchFailed, match=words):
            await driver.advance(wanted, {})


@pytest.mark.long
async def test_the_container_of_somebody_else_is_neither_taken_nor_removed(here: Site, driver: Podman) -> None:
    plain = "--network=none", "--ulimit=nofile=1024:1024", "--ulimit=nproc=99:99"
    here.podman("run", "-d", "--name=headgate-n1", *plain, "localhost/machine:1", "sleep", "1000")
    try:
        with pytest.raises(LaunchFailed, match="exists, but is not Headgate's"):
            await driver.advance(machine(), {})
        assert await driver.remove(machine(), {})
        assert here.podman("ps", "--format", "{{.Names}}").split() == ["headgate-n1"]
    finally:
        here.podman("rm", "-f", "-t", "0", "headgate-n1")
