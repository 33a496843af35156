"""Test `headgate node` with a server: configuration, accounts of clouds, and reasons of refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from click.testing import CliRunner

from headgate.base.errors import UserError
from headgate.cli.main import group
from headgate.config.files.document import Table
from headgate.config.files.source import Source
from headgate.config.parse import Stanza
from headgate.map.inventory.nodes import NodeAccount
from headgate.web.app import create_app
from headgate.web.server import serve

from .conftest import World
from .test_machines import OTHERS, furnished

PROJECT = "git.example/config"
ANSWERS: dict[tuple[str, str], dict[str, Any]] = {
    ("label", "small"): {"description": "for\nquick jobs"},
    ("flavor", "tiny"): {"description": "one core"},
    ("section", "west"): {"connection": "sky", "images": [{"name": "debian"}], "flavors": [{"name": "tiny"}]},
    ("image", "debian"): {"type": "cloud"},
    ("provider", "main"): {"section": "west", "labels": [{"name": "small"}, {"name": "unknown"}]},
}
GONE = NodeAccount(connection="gone", region="west", lacking_ms=61_000)
STRANGE = NodeAccount(connection="sky", strange=("instance/i-7",), strange_ms=1_000)
Say = Callable[..., Coroutine[Any, Any, str]]


def configure(world: World) -> None:
    landed, source = world.site.tenant("example").layouts.landed, Source(PROJECT, "local", "master", "z.yaml", True, "")
    for (kind, name), fields in ANSWERS.items():
        body = Table(1)
        body |= {"name": name, **fields}
        landed.singles[kind][name] = Stanza(kind, body, source, 1)


async def furnish(world: World) -> None:
    configure(world)
    await furnished(world)
    context = world.running.context
    places = {"a1": GONE, "b2": STRANGE}
    puts = [context.map.nodes.accounts(name).record.put(one) for name, one in places.items()]
    for entry in await context.store.commit([], puts):
        assert entry is not None
        await context.mirror.reached(entry.path, entry.version)


@asynccontextmanager
async def commands(world: World, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Say]:
    """Provide `headgate node` against a server of the gate; a refusal is returned after `! `."""
    stop, bound = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.ensure_future(serve(create_app(world.site), "127.0.0.1", 0, stop, bound.set_result))
    url = f"http://127.0.0.1:{await bound}"

    async def say(*words: str, token: str = "operators") -> str:
        monkeypatch.setenv("HEADGATE_TOKEN", token)
        done = await asyncio.to_thread(CliRunner().invoke, group, ["node", *words, "--url", url])
        if isinstance(done.exception, UserError):
            return f"! {done.exception}"
        assert done.exit_code == 0, done.output
        return done.output

    try:
        yield say
    finally:
        stop.set()
        await serving


def cells(text: str) -> list[list[str]]:
    """Return the rows of a table without its heading, as words."""
    return [line.split() for line in text.splitlines()[1:]]


async def test_the_commands_list_and_control_nodes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with commands(world, monkeypatch) as say:
        assert await say("providers") == "There are no providers.\n"
        assert await say("flavors") == "There are no flavors.\n"
        assert await say("accounts") == "Headgate has not created any machines.\n"
        await furnish(world)
        assert cells(await say("providers")) == [["main", "git.example%2Fconfig/main", "small"]]
        (provider,) = json.loads(await say("providers", "--format", "json"))
        assert [one["name"] for one in provider["flavors"] + provider["images"]] == ["tiny", "debian"]
        labels = {row[0]: row[1:] for row in cells(await say("labels", "--tenant", "example"))}
        assert labels["small"] == ["git.example%2Fconfig/small", r"for\nquick", "jobs"], "a text is one line"
        assert labels["large"] == [], "a nodeset asks for it, and nobody defines it"
        assert cells(await say("flavors")) == [["tiny", "git.example%2Fconfig/tiny", "one", "core"]]
        await accounts_are_listed_and_forgotten(world, say)
        await nonsense_is_refused(say)


async def accounts_are_listed_and_forgotten(world: World, say: Say) -> None:
    output = await say("accounts")
    assert [row[:4] for row in cells(output)] == [["a1", "gone", "west", "0"], ["b2", "sky", "2", "machines"]]
    assert "not in the launcher's settings" in output and "another installation: instance/i-7" in output
    assert [one["id"] for one in json.loads(await say("accounts", "--json"))] == ["a1", "b2"]
    assert "takes away by itself" not in await say("forget", "a1", "--reason", "the cloud is closed")
    context = world.running.context
    place = context.map.nodes.accounts("a1").record
    entry = await context.store.get(place.path)
    assert entry is not None and place.decode(entry.value).given_up == "token"
    (did,) = [one for one in await world.get("T/actions") if one["verb"] == "forget-account"] or [None]
    assert did is None, "it is of no tenant"


async def nonsense_is_refused(say: Say) -> None:
    """Without permission, or for unknown objects, the command reports an error and does nothing."""
    for words, token, why in (
        (["providers", "--tenant", "nobody"], "operators", "there is no tenant 'nobody'"),
        (["forget", "zz"], "operators", "there is no account 'zz'"),
        (["forget", "b2"], "operators", "Headgate cleans it up without your help"),
        (["forget", "a1"], "", "a bearer token is needed"),
        (["accounts"], "", "a bearer token is needed"),
        (["hold", OTHERS.id], "operators", f"tenant example has no machine {OTHERS.id}"),
    ):
        assert why in (output := await say(*words, token=token)) and output.startswith("! "), (words, output)
