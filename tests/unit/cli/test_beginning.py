"""Test the tenant file at a start: an error removes nothing that was in force."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest

from headgate.base.errors import UserError
from headgate.cli.launch.components import begun
from headgate.cli.resources import connections
from headgate.cli.settings import Settings, read
from headgate.map.places import Map
from headgate.map.records import RepositoryProblem, SystemConf
from headgate.recipes import blob
from headgate.recipes.mirror import Mirror
from headgate.services.configuration import conf_of
from headgate.services.context import Context
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store

ONE = "- tenant: {name: one, source: {local: {untrusted-projects: [a]}}}\n"
TWO = "- tenant: {name: two, source: {local: {untrusted-projects: [b]}}}\n"
WRONG = "- tenant: {name: two, semaphores: [nothing], source: {local: {untrusted-projects: [b]}}}\n"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "headgate.conf").write_text("[connection local]\nbaseurl = hub\n")
    return read(tmp_path / "headgate.conf")


@pytest.fixture
def context() -> Context:
    store = Store(MemoryBackend())
    return Context(store, Mirror(store, Map().path), lambda: 5_000)


async def store_conf(context: Context, conf: SystemConf) -> None:
    async with context.store.session("a scheduler before"):
        await blob.write(context.store, Map().system.conf.path, msgspec.json.encode(conf))


async def names(settings: Settings, context: Context, text: str | None) -> tuple[list[str], RepositoryProblem | None]:
    file = settings.path.parent / "tenants.yaml"
    file.unlink(missing_ok=True)
    if text is not None:
        file.write_text(text)
    _, found, problem = await begun(settings, context, connections(settings))
    return list(found.tenants), problem


@pytest.mark.parametrize(
    ("broken", "says"),
    [("- tenant: [", "tenants.yaml"), (ONE + WRONG, "nothing"), (None, "No such file"), (ONE[2:], "tenants.yaml")],
    ids=["no yaml", "one tenant", "not there", "no list"],
)
async def test_the_earlier_tenant_file_stays_in_effect_if_the_new_one_is_broken(
    settings: Settings, context: Context, broken: str | None, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    await store_conf(context, conf_of(ONE + TWO, "tenants.yaml"))
    found, problem = await names(settings, context, broken)
    assert found == ["one", "two"]
    assert problem is not None and says in problem.text and problem.since_ms == 5_000
    (record,) = caplog.records
    assert (
        record.levelno == logging.ERROR
        and says in record.message
        and "the earlier one stays in effect" in record.message
    )
    await store_conf(context, msgspec.structs.replace(conf_of(ONE + TWO, ""), refused=problem.text, refused_ms=1_000))
    assert await names(settings, context, broken) == (["one", "two"], RepositoryProblem(1_000, problem.text))
    assert await names(settings, context, ONE) == (["one"], None), "a good one is taken, and nothing else asked"


async def test_without_anything_before_the_good_tenants_begin(settings: Settings, context: Context) -> None:
    assert await names(settings, context, ONE + WRONG) == (["one"], None)
    for broken in ("- tenant: [", None, WRONG):
        with pytest.raises(UserError, match=r"tenants\.yaml"):
            await names(settings, context, broken)


@pytest.mark.parametrize("before", [TWO.replace("local", "gone"), ONE + WRONG, "- tenant: ["])
async def test_an_earlier_tenant_file_that_no_longer_loads_is_not_used_instead(
    settings: Settings, context: Context, before: str
) -> None:
    """A connection may have disappeared from the settings meanwhile."""
    await store_conf(context, conf_of(before, "tenants.yaml"))
    assert await names(settings, context, ONE + WRONG) == (["one"], None)
    with pytest.raises(UserError, match=r"tenants\.yaml"):
        await names(settings, context, "- tenant: [")


async def test_a_damaged_record_is_no_help(settings: Settings, context: Context) -> None:
    async with context.store.session("somebody"):
        await blob.write(context.store, Map().system.conf.path, b"[")
    with pytest.raises(UserError, match=r"tenants\.yaml"):
        await names(settings, context, "- tenant: [")
