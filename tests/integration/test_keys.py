"""Test keys of projects with the command line and the API: created, shown, exported, imported, rotated, deleted."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest
import yaml
from click.testing import CliRunner, Result

from headgate.adapters.keys import rsa
from headgate.adapters.keys.keystore import ENCRYPTED, KeyStore
from headgate.adapters.sql.history import SqlHistory
from headgate.base.errors import UserError
from headgate.cli.main import group
from headgate.map.keys import KeyPair
from headgate.map.places import Map
from headgate.map.records import HandAction
from headgate.recipes.codec import decode
from headgate.recipes.stream import StreamEntry
from headgate.store.memory import MemoryBackend
from headgate.store.sqlite import SqliteBackend
from headgate.store.store import Store
from headgate.testing.gate import gate
from headgate.testing.repositories import Repositories
from headgate.testing.servers.program import free_ports
from tests.site import client_of, site_of

from .conftest import TENANTS


class Reading(yaml.SafeLoader):
    """Return the pieces of an encrypted value, as a list."""


Reading.add_constructor(ENCRYPTED, lambda loader, node: loader.construct_sequence(node))
EXPORTED = Path(__file__).parents[1] / "unit/adapters_keys/exported.json"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "tenants.yaml").write_text("- tenant: {name: acme, source: {hub: {untrusted-projects: [org/app]}}}\n")
    settings(tmp_path, "correct horse")
    return tmp_path


def settings(here: Path, password: str) -> None:
    (here / "headgate.conf").write_text(
        f"[scheduler]\ntenant_config = tenants.yaml\n[connection hub]\nbaseurl = repos\n"
        f"[keystore]\npassword = {password}\n[web]\nport = {free_ports(1)[0]}\n"
    )


def keys(here: Path, *words: str) -> Result:
    return CliRunner().invoke(group, ["keys", words[0], "--config", str(here / "headgate.conf"), *words[1:]])


def error_of(done: Result) -> str:
    """Return the error message of a failed command."""
    assert isinstance(done.exception, UserError), done.output
    return str(done.exception)


def test_a_state_directory_that_reading_creates_is_private(here):
    conf = here / "headgate.conf"
    conf.write_text(conf.read_text().replace("[scheduler]\n", "[scheduler]\nstate_dir = state\n"))
    assert keys(here, "show").exit_code == 0
    assert (here / "state").stat().st_mode & 0o777 == 0o700


@pytest.mark.long
def test_exported_keys_can_be_imported_elsewhere(here, tmp_path_factory):
    assert "Imported the keys of 1 projects" in keys(here, "import", str(EXPORTED)).output
    listed = keys(here, "show").output
    assert listed.startswith("org/app (hub)  version 1  2023-11-14 22:13 UTC  SHA256:")
    out = tmp_path_factory.mktemp("out") / "keys.json"
    assert keys(here, "export", str(out), "org/app").exit_code == 0
    assert json.loads(out.read_text()) == json.loads(EXPORTED.read_text())
    assert out.stat().st_mode & 0o077 == 0


def test_exported_keys_are_their_owner_s_alone_whatever_was_there(here, tmp_path):
    keys(here, "import", str(EXPORTED))
    out, elsewhere = tmp_path / "keys.json", tmp_path / "elsewhere"
    out.write_text("old")
    out.chmod(0o666)
    with out.open() as opened:
        assert keys(here, "export", str(out)).exit_code == 0
        assert opened.read() == "old", "whoever has the old file open learns nothing"
    assert json.loads(out.read_text()) == json.loads(EXPORTED.read_text()) and out.stat().st_mode & 0o777 == 0o600
    elsewhere.write_text("precious")
    (tmp_path / "link").symlink_to(elsewhere)
    assert "is not a regular file" in error_of(keys(here, "export", str(tmp_path / "link")))
    assert elsewhere.read_text() == "precious"


@pytest.mark.long
def test_a_wrong_password_says_what_to_do_and_changes_nothing(here, tmp_path):
    settings(here, "another")
    assert "--password-file FILE" in error_of(keys(here, "import", str(EXPORTED)))
    assert "No project has a key yet" in keys(here, "show").output
    (tmp_path / "old").write_text("correct horse\n")
    assert keys(here, "import", "--password-file", str(tmp_path / "old"), str(EXPORTED)).exit_code == 0
    settings(here, "forgotten")
    assert "Set [keystore] password to the one with which it was written" in error_of(keys(here, "rotate", "org/app"))


@pytest.mark.long
def test_secrets_of_a_rotated_key_can_be_decrypted_until_it_is_retired(here, tmp_path):
    keys(here, "import", str(EXPORTED))
    assert "has key 2" in keys(here, "rotate", "org/app").output
    assert [line.split()[3] for line in keys(here, "show").output.splitlines()] == ["2", "1"]
    newest = keys(here, "show", "org/app").output
    assert newest != json.loads(EXPORTED.read_text())["keys"][0]["pairs"][0]["public"]
    keys(here, "export", str(tmp_path / "both.json"))
    assert [pair["version"] for pair in json.loads((tmp_path / "both.json").read_text())["keys"][0]["pairs"]] == [2, 1]
    assert "is `headgate run` running?" in error_of(keys(here, "retire", "org/app", "1"))  # it is unknown what needs it
    assert "older ones: 1" in error_of(keys(here, "retire", "--lossy", "org/app", "2"))
    assert "Remaining keys of org/app: 2.\n" in keys(here, "retire", "--lossy", "org/app", "1").output
    assert keys(here, "import", "--overwrite", str(tmp_path / "both.json")).exit_code == 0
    assert "already has another key" in error_of(keys(here, "import", str(EXPORTED)))
    assert keys(here, "import", "--overwrite", str(EXPORTED)).exit_code == 0
    assert keys(here, "delete", "--yes", "org/app").exit_code == 0
    assert "there is no key of org/app (hub)" in error_of(keys(here, "delete", "--yes", "org/app"))


def deeds(here: Path) -> list[HandAction]:
    """List the entries that wait for the history, in order."""

    async def read() -> list[HandAction]:
        backend = await SqliteBackend.open(here / "state/headgate.sqlite")
        try:
            store, place = Store(backend), Map().history
            bodies = {
                entry.path: decode(entry.value, HandAction) for entry in await store.list(place.action_bodies.path)
            }
            order = sorted(await store.list(place.actions.path), key=lambda entry: entry.path)
            return [bodies[f"{place.action_bodies.path}/{decode(entry.value, StreamEntry).data}"] for entry in order]
        finally:
            await backend.close()

    return asyncio.run(read())


@pytest.mark.long
def test_actions_on_keys_are_recorded_with_person_and_reason(here, tmp_path, monkeypatch):
    monkeypatch.setenv("SUDO_USER", "ada")
    (tmp_path / "same").write_text("correct horse\n")
    for words in (
        ("import", "--reason", "moved here", str(EXPORTED)),
        ("rotate", "--reason", "it leaked", "org/app"),
        ("retire", "--lossy", "org/app", "7"),
        ("password", str(tmp_path / "same")),
        ("delete", "--yes", "--reason", "gone\x1b[2J", "org/app"),
    ):
        keys(here, *words)
    found = deeds(here)
    assert [(one.verb, one.outcome) for one in found[::2]] == [(one.verb, "") for one in found[1::2]]
    records = [(one.verb, one.tenant, one.subject, one.reason) for one in found[::2]]
    assert records == [
        ("import-keys", "", "exported.json: org/app (hub)", "moved here"),
        ("rotate-key", "acme", "org/app", "it leaked"),
        ("retire-key", "acme", "7 of org/app", ""),
        ("change-key-password", "", "all keys", ""),
        ("delete-keys", "acme", "org/app", "gone"),
    ]
    ends = [one.outcome for one in found[1::2]]
    assert ends[:2] + ends[3:] == ["done"] * 4 and ends[2].startswith("there is no older key 7 of org/app")
    assert {one.who for one in found} == {"ada"} and all(one.at_ms and one.origin for one in found)
    assert len({one.id for one in found}) == 5


@pytest.mark.long
def test_keys_with_another_password_still_decrypt_earlier_secrets(here, tmp_path):
    keys(here, "import", str(EXPORTED))
    before = keys(here, "show", "org/app").output
    (tmp_path / "new").write_text("battery staple\n")
    assert "Changed 1 keys" in keys(here, "password", str(tmp_path / "new")).output
    assert "Changed 0 keys" in keys(here, "password", str(tmp_path / "new")).output
    assert "cannot be decrypted" in error_of(keys(here, "rotate", "org/app"))
    settings(here, "battery staple")
    assert keys(here, "show", "org/app").output == before and "has key 2" in keys(here, "rotate", "org/app").output
    (tmp_path / "empty").write_text("\n")
    assert "is empty" in error_of(keys(here, "password", str(tmp_path / "empty")))


@pytest.mark.parametrize("words", [("import", str(EXPORTED)), ("import", "--overwrite", str(EXPORTED))])
def test_a_key_that_a_running_headgate_makes_meanwhile_is_not_imported_over(here, monkeypatch, words):
    every, made = KeyStore.every, []

    async def overtaken(self: KeyStore) -> dict[tuple[str, str], tuple[KeyPair, ...]]:
        """Read the keys, and let another process create one before anything is written."""
        found = await every(self)
        made.append(await self.public("hub", "org/app"))
        return found

    monkeypatch.setattr(KeyStore, "every", overtaken)
    assert "changed the keys of org/app (hub) in the meantime" in error_of(keys(here, *words))
    monkeypatch.setattr(KeyStore, "every", every)
    assert keys(here, "show", "org/app").output == made[0]


def test_keys_of_a_running_headgate_can_be_read_but_not_written(here):
    keys(here, "import", str(EXPORTED))

    async def beside() -> None:
        backend = await SqliteBackend.open(here / "state/headgate.sqlite")
        try:
            assert (await asyncio.to_thread(keys, here, "show", "org/app")).output.startswith("-----BEGIN PUBLIC KEY")
            done = await asyncio.to_thread(keys, here, "delete", "--yes", "org/app")
            assert "Stop it while this command runs" in error_of(done)
        finally:
            await backend.close()

    asyncio.run(beside())


@pytest.mark.long
def test_a_value_is_encrypted_without_a_server(here, tmp_path):
    keys(here, "import", str(EXPORTED))
    public = tmp_path / "app.pub"
    public.write_text(keys(here, "show", "org/app").output)
    words = ["--public-key", str(public), "--secret-name", "pypi", "--field-name", "token"]
    done = CliRunner().invoke(group, ["encrypt", *words], input="sesame" * 100 + "\n")
    (stanza,) = yaml.load(done.output, Reading)
    assert stanza["secret"]["name"] == "pypi"
    private = json.loads(EXPORTED.read_text())["keys"][0]["pairs"][0]["private"]
    pieces = stanza["secret"]["data"]["token"]
    opened = rsa.decrypt([rsa.load_private(private, "correct horse")], pieces)
    assert opened.decode() == "sesame" * 100


def test_encrypting_without_a_project_or_a_key_is_reported(here, tmp_path):
    assert "name the project with" in CliRunner().invoke(group, ["encrypt"], input="x").output
    (tmp_path / "no.pub").write_text("nothing")
    done = CliRunner().invoke(group, ["encrypt", "--public-key", str(tmp_path / "no.pub")], input="x")
    assert "this is not a public key in PEM form" in error_of(done)


def test_a_secret_that_the_keys_do_not_open_is_an_error_of_the_configuration(here, tmp_path):
    keys(here, "import", str(EXPORTED))
    (tmp_path / "app.pub").write_text(keys(here, "show", "org/app").output)
    encrypt = ["encrypt", "--public-key", str(tmp_path / "app.pub"), "--secret-name", "good"]
    good = CliRunner().invoke(group, encrypt, input="sesame").output
    bad = good.replace("name: good", "name: bad").replace("        - ", "        - AAAA")
    Repositories(tmp_path / "made").create("org/app", {"zuul.yaml": good + bad})
    (tmp_path / "made/hub").rename(tmp_path / "repos")
    check = ["check", "--json", "--config", str(here / "headgate.conf")]
    (error,) = json.loads(CliRunner().invoke(group, check).stdout)["acme"]["errors"]
    assert error["line"] == 3 + good.count("\n") and error["project"] == "hub/org/app"
    assert error["message"].startswith("the secret 'bad': a secret of org/app (hub) cannot be decrypted")
    keys(here, "delete", "--yes", "org/app")
    errors = json.loads(CliRunner().invoke(group, check).stdout)["acme"]["errors"]
    assert ["has no key here" in error["message"] for error in errors] == [True, True]


@pytest.mark.long
async def test_the_public_key_of_a_project_is_served_and_created_on_first_request(tmp_path, repositories):
    async with gate(tmp_path, repositories.hub, MemoryBackend(), TENANTS) as running:
        history = SqlHistory(f"sqlite:///{tmp_path}/history.sqlite")

        def served(password: str) -> httpx.AsyncClient:
            keystore = KeyStore(running.context.store, password, running.context.now_ms)
            return client_of(site_of(running.context, running.scheduler.tenants, history, tmp_path, keys=keystore))

        place = "/api/tenant/example/key/code/api.pub"
        async with served("") as client:
            assert "set `password` in section [keystore]" in (await client.get(place)).text
        async with served("secret") as client:
            answer = await client.get(place)
            assert answer.headers["content-type"].startswith("text/plain")
            assert rsa.load_public(answer.text).key_size == 4096
            assert (await client.get(place)).text == answer.text
            none = await client.get("/api/tenant/example/key/code/apj.pub")
            assert none.status_code == 404 and "did you mean 'code/api'?" in none.json()["description"]
        history.close()
