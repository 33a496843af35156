"""Test a store against the map: valid entries are accepted, all others are reported."""

import asyncio
import random

import pytest
from click.testing import CliRunner

from headgate.base.errors import UserError
from headgate.cli.store.store import map_commands
from headgate.config.model import FrozenJob
from headgate.gate.state.change import Change
from headgate.gate.state.works import RepoState
from headgate.map.check import check, show_tree
from headgate.map.forms import ITEM, PIPELINE
from headgate.map.keys import KeyStorage, ProjectKeyPairs
from headgate.map.places import Map
from headgate.map.records import Finished
from headgate.recipes import blob
from headgate.store.sqlite import SqliteBackend
from headgate.store.types import Append, Entry, Lease, Put

MAP = Map()
GATE = MAP.tenant("acme").pipeline("gate")
BUILDSET = GATE.item("i1").buildset("b1")


FINISHED = Finished("b1", "acme", "gate", Change("git", "host/p", "main"), "e1", "success", "", 1, 2)


def entries(*ops):
    return [Entry(op.path, op.value, 1, born, op.lease) for born, op in enumerate(ops)]


def line(path, ticket=b"w me"):
    return Put(f"{path}/0000000007", ticket, Lease("l"))


def large_state():
    rng = random.Random(1)
    heads = {f"refs/heads/{n}": f"{rng.getrandbits(160):040x}" for n in range(30_000)}
    return RepoState(heads={"host/p": heads})


def test_entries_in_their_places_are_no_findings():
    findings = check(
        entries(
            GATE.record.put(PIPELINE.type(queues=("q",))),
            GATE.item("i1").record.put(ITEM.type(change=Change("git", "host/p", "main"))),
            BUILDSET.job("unit/py").record.put(FrozenJob("unit/py")),
            *BUILDSET.repo_state.blob(RepoState()),
            line(MAP.cleanup.sempahores.path),
            line(MAP.config.lock("host/p").lock.path, b"r me"),
            Put(MAP.ltime.path, b""),
            *blob.ops(MAP.config.cache("host/p").branch("main").file("zuul.d/jobs.yaml").text.path, b"- job:\n"),
            Put(f"{MAP.merger.places.params}/r1", b'{"type":"cat","project":"p","connection":"git"}'),
        )
    )
    assert findings.good, findings.text()
    assert f"{len(findings.alive)} of {len(findings.seeds)} known places have entries" in findings.text()


def test_a_value_in_pieces_is_read_completely():
    ops = BUILDSET.repo_state.blob(large_state())
    assert len(ops) > 2, "too small to be in pieces"
    assert check(entries(*ops)).good
    (missing,) = check(entries(*ops[1:])).undecodable
    assert missing.path == BUILDSET.repo_state.path and "missing" in missing.why


@pytest.mark.parametrize(
    "path",
    [
        "/zuul/cleanup/semaphores/0000000001",
        "/zuul/tenant/acme",
        "/zuul/cleanup/general/mine",
        "/zuul/events/connection/git/events/queue/first",
        "/zuul/merger/requests/r1/more",
        "/zuul/merger/requests",
        "/zuul/system/conf/piece",
        "/other",
    ],
)
def test_entries_outside_the_map_are_reported_as_unknown(path):
    findings = check(entries(Put(path, b"{}")))
    assert [f.path for f in findings.unknown] == [path] and not findings.good
    assert f"{path}: not on the map" in findings.text()


def test_unreadable_values_are_reported_with_their_path():
    findings = check(entries(Put(GATE.record.path, b'{"queues":"x"}')))
    assert [f.path for f in findings.undecodable] == [GATE.record.path]
    assert f"{GATE.record.path}: cannot be read" in findings.text()


def test_a_place_is_alive_when_something_is_in_or_below_it():
    findings = check(entries(GATE.record.put(PIPELINE.type()), MAP.history.stream.append(FINISHED)[0]))
    assert findings.alive == {"/zuul/tenant/<tenant>", "/zuul/tenant/<tenant>/pipeline/<pipeline>"}
    assert "/zuul/ltime: no entry now" in findings.text(every=True)


def test_checks_at_different_times_are_combined():
    first, second = check(entries(Put(MAP.ltime.path, b""))), check(entries(line(MAP.nodepool.path)))
    assert {"/zuul/ltime", "/zuul/nodepool"} <= first.also(second).alive


def test_shown_by_depth_with_values_and_problems():
    shown = list(
        show_tree(
            entries(
                GATE.record.put(PIPELINE.type(failures=3)),
                MAP.tenant("acme").pipeline("a/b").record.put(PIPELINE.type()),
                Put("/zuul/tenant/stray", b""),
                *BUILDSET.repo_state.blob(large_state()),
            ),
            prefix="tenant",
        )
    )
    assert '        gate  {"failures":3}' in shown
    assert any(s.strip().startswith("a/b") for s in shown)
    assert any("stray  !! not on the map" in s for s in shown)
    assert sum("repo_state" in s for s in shown) == 1 and max(map(len, shown)) < 220


async def written(file, ops):
    backend = await SqliteBackend.open(file)
    await backend.commit([], ops)
    await backend.close()


def run(*words):
    return CliRunner().invoke(map_commands, [str(word) for word in words])


def test_the_command_reads_a_store(tmp_path):
    file = tmp_path / "store"
    asyncio.run(written(file, [GATE.record.put(PIPELINE.type()), Append(MAP.nodepool.path, b"w me")]))
    assert (looked := run("check", "--store", file)).exit_code == 0 and "known places have entries" in looked.output
    assert "gate" in run("tree", "--store", file, "tenant/acme").output
    assert "nodepool" not in run("tree", "--store", file, "tenant").output
    assert run("tree", "--store", file, "tenant/nobody").exit_code == 1
    asyncio.run(written(file, [Put("/zuul/stray", b"")]))
    assert (looked := run("check", "--store", file, "--all")).exit_code == 1
    assert "/zuul/stray: not on the map" in looked.output and "/zuul/ltime: no entry now" in looked.output


def test_the_command_says_when_there_is_no_store(tmp_path):
    looked = run("check", "--store", tmp_path / "none")
    assert isinstance(looked.exception, UserError) and "there is no store" in str(looked.exception)


def test_the_command_prints_the_reference():
    assert "| `/zuul/ltime` |" in run().output


def test_every_tree_of_the_store_is_on_the_map():
    keys = KeyStorage().connection("hub").project("org/app").secrets
    assert keys.path.endswith("/hub/org%2Fapp/secrets")
    good, bad = keys.put(ProjectKeyPairs(())), Put(f"{KeyStorage().path}/hub/app/other", b"")
    findings = check(entries(good, bad, Put(MAP.ltime.path, b"")))
    assert [f.path for f in findings.unknown] == [bad.path]
    assert [line.strip() for line in show_tree(entries(good), prefix=KeyStorage().path)][-1].startswith("secrets")
