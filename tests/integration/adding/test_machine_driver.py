"""Test that a driver of machines is a module and two rows: `docs/how-to/add/a-driver-of-machines.md`."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.adapters.nodes.clouds.registry import CLOUDS, CloudDriver, settings_of
from headgate.adapters.option import ConnectionOption
from headgate.base.errors import UserError
from headgate.cli.options import OPTIONS, add
from headgate.cli.resources import cloud
from headgate.cli.settings import read
from headgate.config.files.checks import StanzaKey
from headgate.config.keys.forms import words
from headgate.config.keys.nodes import FLAVOR, IMAGE, LABEL, NODE_DRIVERS, OWN, NodeDriver
from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState
from headgate.ports.clouds import NODE_TAG, Cloud, LaunchFailed, MachineSpec, Made, OverQuota
from headgate.store.memory import MemoryBackend
from headgate.testing.gate import gate
from headgate.testing.repositories import Repositories

from ..conftest import MACHINE_TENANTS
from ..test_made_machines import configured, launching, none_left
from ..test_providers import push

SETTINGS = "[connection sky]\ndriver = shed\n"


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the two rows of a new driver."""
    row = CloudDriver(
        f"{__package__}.shed",
        {"place": ConnectionOption("path", "", "where it is.")},
        ("place", "where it is"),
        rated=False,
    )
    monkeypatch.setitem(CLOUDS, "shed", row)
    tools = StanzaKey(words("hammer", "saw"), "hammer")
    monkeypatch.setitem(NODE_DRIVERS, "shed", NodeDriver(OWN, IMAGE, FLAVOR, {**LABEL, "tool": tools}, refuses=True))
    known = dict(OPTIONS["connection *"])  # derived from the rows at import
    monkeypatch.setitem(OPTIONS, "connection *", known)
    add(known, "shed", settings_of("shed"))
    known["driver"] = known["driver"]._replace(kind=f"{known['driver'].kind},shed")


def shed(root: Path, place: str = "shed") -> Cloud:
    (root / "shed").mkdir(exist_ok=True)
    (root / "headgate.conf").write_text(f"{SETTINGS}place = {place}\n")
    return cloud(read(root / "headgate.conf", {}), "sky")


def node(name: str) -> MachineSpec:
    return MachineSpec(name, {}, {}, {}, {}, {NODE_TAG: name})


async def test_one_machine_is_made_for_a_node_however_often_it_is_requested(tmp_path: Path) -> None:
    first = await shed(tmp_path).advance(node("a"), {})
    again = await shed(tmp_path).advance(node("a"), {})  # the answer was lost, and the launcher started again
    assert isinstance(first, Made) and first == again
    await shed(tmp_path).advance(node("b"), {})
    with pytest.raises(OverQuota, match="benches"):
        await shed(tmp_path).advance(node("c"), {})
    assert await shed(tmp_path).remove(node("a"), first.state)
    assert [one.tags[NODE_TAG] for one in await shed(tmp_path).resources({})] == ["b"]
    with pytest.raises(LaunchFailed, match="its bench was cleared"):
        await shed(tmp_path).advance(node("a"), first.state)


def test_a_missing_place_is_reported_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\[connection sky\]: place: .*barn is not a directory: make it"):
        shed(tmp_path, "barn")


async def test_a_build_runs_on_the_machines_that_it_makes(tmp_path: Path, repositories: Repositories) -> None:
    tenants, seen = configured(repositories), list[BuildSpec]()
    assert "label, nodeset, section" in tenants and tenants != MACHINE_TENANTS
    text = (repositories.work("config") / "zuul.yaml").read_text()
    for of_aws in ("    region: west-1\n", ", image-id: ami-1", ", instance-type: t3"):
        assert of_aws in text
        text = text.replace(of_aws, "")
    push(repositories, text.replace("labels: [little]", "labels: [{name: little, tool: saw}]"))

    def unit(spec: BuildSpec, state: RepoState) -> BuildOutcome:
        seen.append(spec)
        return BuildOutcome(build=spec.build, result="SUCCESS")

    driver = shed(tmp_path)
    async with (
        gate(tmp_path, repositories.hub, MemoryBackend(), tenants, {"unit": unit}, clouds={"sky": "shed"}) as running,
        launching(running, driver),
    ):
        repositories.propose("code/api", "greet", {"hello": "hi\n"})
        assert (await running.history.result_of("greet", "check")).result == "SUCCESS"
        await none_left(running.context)
    (spec,) = seen
    assert spec.hosts.keys() == {"box", "space"}
    found = {(host["ansible_host"], host["tool"]) for host in spec.hosts.values()}
    assert found == {("bench-0", "saw"), ("bench-1", "saw")}
    assert not await driver.resources({}), "what was made is gone with the build"
