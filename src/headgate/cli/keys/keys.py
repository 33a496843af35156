"""Implement `headgate keys`: show, export, import, rotate, retire and delete the key pairs of projects."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import click
import msgspec

from headgate.adapters.keys import rsa
from headgate.adapters.keys.keystore import NO_PASSWORD, KeyStore
from headgate.base.errors import UserError
from headgate.base.files import bytes_of, text_of
from headgate.base.private import private_directory, private_replacement
from headgate.base.texts import line
from headgate.cli.groups import CommandGroup
from headgate.cli.identity.byhand import ManualAction, recorded
from headgate.cli.identity.pages import pages
from headgate.cli.keys.backup import OpeningKeys, is_backup, read_backup
from headgate.cli.resources import connections, open_store, tenants
from headgate.cli.settings import Settings, find, read
from headgate.cli.terminal.say import say
from headgate.map.keys import KeyPair
from headgate.ports.secrets import SecretError
from headgate.store.sqlite import Locked, SqliteReader
from headgate.store.store import Store
from headgate.store.types import Backend, StoreError

T = TypeVar("T")

_config = click.option("--config", metavar="FILE", help="The settings file.")
_url = click.option("--url", help="URL of a running Headgate's pages and API. Default: from the settings.")
_reason = click.option("--reason", default="", help="The reason, recorded by a running Headgate.")
_recorded_reason = click.option("--reason", default="", help="The reason, recorded with the action.")
_Body = Callable[[KeyStore, Settings], Awaitable[T]]


class KeyProject(NamedTuple):
    connection: str
    name: str

    def __str__(self) -> str:
        return f"{self.name} ({self.connection})"


class ExportedProject(msgspec.Struct, frozen=True):
    """Describe one project in an exported file."""

    connection: str
    project: str
    pairs: tuple[KeyPair, ...]


class Exported(msgspec.Struct, frozen=True):
    """Describe the file of `headgate keys export`. Private keys are encrypted as in the store."""

    keys: tuple[ExportedProject, ...]
    v: int = 1


@click.group(cls=CommandGroup)
def command() -> None:
    """Manage the key pairs that encrypt the secrets of projects.

    Headgate creates a pair on first use. Private keys are encrypted with `[keystore] password`.
    """


@command.command()
@_config
@click.argument("project", required=False)
def show(config: str | None, project: str | None) -> None:
    """List all keys, or print the public key of PROJECT, and create the key if it does not exist."""

    async def body(keys: KeyStore, settings: Settings) -> None:
        every = await keys.every()
        for (connection, name), pairs in sorted(every.items()):
            for pair in pairs:
                made = datetime.fromtimestamp(pair.created_ms / 1000, UTC)
                mark = "" if pair is pairs[0] else "  (older)"
                say(
                    f"{name} ({connection})  version {pair.version}  {made:%Y-%m-%d %H:%M} UTC  "
                    f"{rsa.fingerprint(pair.public)}{mark}"
                )
        if not every:
            say("No project has a key yet; Headgate creates a key on first use.")

    async def known(keys: KeyStore, settings: Settings) -> str:
        pairs = await keys.pairs(*await _find(keys, settings, project or ""))
        return pairs[0].public if pairs else ""

    async def made(keys: KeyStore, settings: Settings) -> str:
        return await keys.public(*await _find(keys, settings, project or ""))

    if project:
        # Reading works while Headgate runs; open the store for writing only if the key is missing.
        say(_run(config, known, write=False) or _run(config, made, write=True), nl=False)
    else:
        _run(config, body, write=False)


@command.command()
@_config
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("projects", nargs=-1)
def export(config: str | None, file: Path, projects: tuple[str, ...]) -> None:
    """Write the keys of PROJECTS (default: of all projects) to FILE.  They stay encrypted with the password."""

    async def body(keys: KeyStore, settings: Settings) -> None:
        every = await keys.every()
        wanted = [await _find(keys, settings, name) for name in projects] or sorted(
            KeyProject(*known) for known in every
        )
        missing = [str(found) for found in wanted if found not in every]
        if missing:
            raise UserError(f"there is no key of {', '.join(missing)}")
        exported = Exported(tuple(ExportedProject(*found, every[found]) for found in wanted))
        # Somebody may have planted a link at the path to which the keys will be written.
        if file.is_symlink() or (file.exists() and not file.is_file()):
            raise UserError(f"{file} is not a regular file; choose another name")
        try:
            with private_replacement(file) as out:
                out.write(msgspec.json.format(msgspec.json.encode(exported)) + b"\n")
        except OSError as error:
            raise UserError(f"{file}: cannot be written: {error.strerror}") from error
        say(f"Wrote the keys of {len(wanted)} projects to {file}; to use them, you need the same password.")

    _run(config, body, write=False)


@command.command("import")
@_config
@click.option("--overwrite", is_flag=True, help="Replace existing keys.")
@click.option(
    "--password-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="A file with the password of the exported keys, if it is not [keystore] password.",
)
@_recorded_reason
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
def import_(config: str | None, overwrite: bool, password_file: Path | None, reason: str, file: Path) -> None:
    """Import keys from FILE, written by `headgate keys export` or by the export command of Zuul.

    If one of the keys cannot be decrypted, the command imports none.
    """
    wanted, left_out = _offered(file)

    async def body(keys: KeyStore, settings: Settings) -> None:
        known = await keys.every()
        password = settings.get("keystore", "password")
        theirs = text_of(password_file).strip() if password_file else password
        fresh = {
            (key_project := KeyProject(one.connection, one.project)): tuple(
                _again(key_project, pair, theirs, password) for pair in one.pairs
            )
            for one in wanted
        }
        # A second import of the same file, after an interruption, must not be a conflict.
        same = {
            key_project
            for key_project in fresh
            if key_project in known and _publics(known[key_project]) == _publics(fresh[key_project])
        }
        # Check everything before writing the first key.
        for key_project in fresh:
            if key_project in known and key_project not in same and not overwrite:
                raise UserError(f"{key_project} already has another key; nothing was imported. --overwrite replaces it")
        for key_project in fresh.keys() - same:
            await keys.put(*key_project, fresh[key_project], known.get(key_project, ()))
        say(f"Imported the keys of {len(fresh)} projects from {file}.")
        for path, why in left_out.items():
            say(f"Left out {line(path)}: {why}.")
        for name in sorted({one.connection for one in wanted} - settings.connections.keys()):
            say(f"{settings.path} has no connection {line(name)}; its keys are unused until you add it.")

    names = ", ".join(str(KeyProject(one.connection, one.project)) for one in wanted)
    _run(config, body, write=True, deed=ManualAction("import-keys", f"{file.name}: {names}", reason))


def _offered(file: Path) -> tuple[tuple[ExportedProject, ...], Mapping[str, str]]:
    """Return the keys to import from a file, and the reasons for other entries, by path. Raise UserError."""
    try:
        document = msgspec.json.decode(bytes_of(file))
        if is_backup(document):
            found = read_backup(document, str(file))
            return tuple(map(_exported, found.projects)), found.left_out
        return msgspec.convert(document, Exported).keys, {}
    except (OSError, ValueError) as error:
        raise UserError(
            f"{file}: this file was written neither by `headgate keys export` nor by Zuul's export of keys: {error}"
        ) from error


def _exported(one: OpeningKeys) -> ExportedProject:
    """Convert keys to Headgate's form, in which versions count from 1. Public keys are derived later, when the private
    keys are decrypted."""
    pairs = (KeyPair(of.version + 1, int(of.created * 1000), "", of.private_key) for of in one.versions)
    return ExportedProject(one.connection, one.project, tuple(pairs))


def _publics(pairs: tuple[KeyPair, ...]) -> list[str]:
    return [pair.public for pair in pairs]


def _again(of: KeyProject, pair: KeyPair, theirs: str, ours: str) -> KeyPair:
    """Return the pair re-encrypted with the password `ours`. Raise UserError if the password `theirs` is wrong."""
    if not ours:
        raise UserError(NO_PASSWORD)
    try:
        key = rsa.load_private(pair.private, theirs)
    except rsa.BadKey as error:
        raise UserError(
            f"key {pair.version} of {of} cannot be decrypted: {error}. Nothing was imported; pass the password of the "
            "export with --password-file FILE"
        ) from error
    if theirs == ours and pair.public:
        return pair
    return msgspec.structs.replace(pair, public=rsa.public_pem(key), private=rsa.private_pem(key, ours))


@command.command()
@_config
@_url
@_reason
@click.argument("project")
def rotate(config: str | None, url: str | None, reason: str, project: str) -> None:
    """Create a new key for PROJECT.  Older keys still decrypt their secrets until you retire them.

    If a running Headgate has locked the store, this command sends it the request. No restart is needed."""

    async def body(keys: KeyStore, settings: Settings) -> tuple[KeyPair, ...]:
        return await keys.rotate(*await _find(keys, settings, project))

    try:
        newest = _run(config, body, write=True, deed=ManualAction("rotate-key", project, reason, project))[0]
    except Busy:
        newest = _change_there(config, url, project, {"reason": reason})[0]
    say(
        f"{project} now has key {newest.version}, {rsa.fingerprint(newest.public)}; encrypt its secrets again with "
        "this key, then retire the older ones."
    )


@command.command()
@_config
@_url
@_reason
@click.option(
    "--lossy",
    is_flag=True,
    help="Retire the key even if secrets need it, or if no running Headgate can check that.",
)
@click.argument("project")
@click.argument("version", type=int)
def retire(config: str | None, url: str | None, reason: str, lossy: bool, project: str, version: int) -> None:
    """Delete the older key VERSION of PROJECT. Nobody can decrypt its secrets afterwards.

    A running Headgate checks first whether secrets of the configuration still need it."""

    async def body(keys: KeyStore, settings: Settings) -> tuple[KeyPair, ...]:
        return await keys.retire(*await _find(keys, settings, project), version)

    wanted = {"reason": reason, "retire": version, "lossy": lossy}
    deed = ManualAction("retire-key", f"{version} of {project}", reason, project)
    # Only a running Headgate has the layouts, and thus knows which secrets need the key; call it unless --lossy.
    try:
        left = _run(config, body, write=True, deed=deed) if lossy else _change_there(config, url, project, wanted)
    except Busy:
        left = _change_there(config, url, project, wanted)
    say(f"Remaining keys of {project}: {', '.join(str(pair.version) for pair in left)}.")


@command.command()
@_config
@_recorded_reason
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
def password(config: str | None, reason: str, file: Path) -> None:
    """Encrypt all keys with the new password in FILE. Afterwards, set `[keystore] password` to it.

    Running processes cannot decrypt secrets until they restart with the new password. If the command was interrupted,
    run it again."""
    fresh = text_of(file).strip()
    if not fresh:
        raise UserError(f"{file} is empty")

    async def body(keys: KeyStore, settings: Settings) -> int:
        return await keys.repassword(settings.get("keystore", "password"), fresh)

    changed = _run(config, body, write=True, deed=ManualAction("change-key-password", "all keys", reason))
    say(f"Changed {changed} keys; now set [keystore] password to the content of {file}, and restart Headgate.")


@command.command()
@_config
@_recorded_reason
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.argument("project")
def delete(config: str | None, reason: str, yes: bool, project: str) -> None:
    """Delete the keys of PROJECT.  Nobody can decrypt its secrets afterwards."""

    async def body(keys: KeyStore, settings: Settings) -> None:
        found = await _find(keys, settings, project)
        if not await keys.pairs(*found):
            raise UserError(f"there is no key of {found}")
        if not yes:
            click.confirm(f"Delete the keys of {found}? The secrets that they encrypt are lost.", abort=True)
        await keys.delete(*found)
        say(f"Deleted the keys of {found}.")

    _run(config, body, write=True, deed=ManualAction("delete-keys", project, reason, project))


class Busy(UserError):
    """Report that a running Headgate uses the store exclusively."""


def _change_there(config: str | None, url: str | None, project: str, body: dict[str, Any]) -> tuple[KeyPair, ...]:
    """Let a running Headgate change the keys; return the pairs without private keys. Raise UserError."""
    settings = read(find(config))
    known = tenants(settings, connections(settings))[1].tenants
    having = [name for name, tenant in known.items() if tenant.find(project) is not None]
    if not having:
        raise UserError(f"no tenant has a project {project!r}")
    path = f"/api/tenant/{quote(having[0], safe='')}/key/{quote(project)}"
    found = pages(config, url).post(path, body)
    return tuple(KeyPair(pair["version"], pair["created_ms"], pair["public"], "") for pair in found)


def _run(config: str | None, body: _Body[T], *, write: bool, deed: ManualAction | None = None) -> T:
    """Run `body` with the key store of the settings file. Raise UserError."""
    return run(read(find(config)), body, write=write, deed=deed)


def run(settings: Settings, body: _Body[T], *, write: bool, deed: ManualAction | None = None) -> T:
    """Run `body` with the key store of the settings, and record `deed` as a manual action. Raise UserError."""
    try:
        return asyncio.run(_opened(settings, body, write=write, deed=deed))
    except Locked as error:
        raise Busy(f"{error}. Stop it while this command runs, or use a store that several processes share") from error
    except (StoreError, SecretError, rsa.BadKey) as error:
        raise UserError(str(error)) from error


async def _opened(settings: Settings, body: _Body[T], *, write: bool, deed: ManualAction | None) -> T:
    backend = await _backend(settings, write=write)
    try:
        store = Store(backend)
        keys = KeyStore(store, settings.get("keystore", "password"), lambda: int(time.time() * 1000))
        if deed is None:
            return await body(keys, settings)
        async with recorded(store, deed, settings):
            return await body(keys, settings)
    finally:
        await backend.close()


async def _backend(settings: Settings, *, write: bool) -> Backend:
    """Open the store. Reading also works with an SQLite file that a running Headgate uses."""
    url = settings.store_url
    if url == "memory:":
        raise UserError("[store] url is memory:, which is lost when the process exits; keys need a persistent store")
    # SqliteReader works without the lock, which a running Headgate holds.
    if url.startswith("sqlite:///") and not write and Path(url.removeprefix("sqlite:///")).exists():
        return SqliteReader(url.removeprefix("sqlite:///"))
    private_directory(settings.state_dir)
    try:
        return await open_store(settings)
    except UserError as error:
        if isinstance(error.__cause__, Locked):
            raise Busy(f"{error}. Stop it while this command runs") from error
        raise


async def _find(keys: KeyStore, settings: Settings, name: str) -> KeyProject:
    """Find a project by short or canonical name, in the tenant file or else among the keys. Raise UserError."""
    known = tenants(settings, connections(settings))[1].tenants
    found = {
        KeyProject(p.connection, p.name) for t in known.values() for p in t.projects if name in (p.name, p.project)
    }
    # Keys of a project that is no longer in the tenant file may still have to be exported or deleted.
    found = found or {KeyProject(*known) for known in await keys.every() if known[1] == name}
    if len(found) == 1:
        return found.pop()
    if found:
        where = ", ".join(sorted(at.connection for at in found))
        raise UserError(f"the connections {where} all have a project {name!r}; give its canonical name")
    raise UserError(f"no tenant has a project {name!r}, and there is no key of such a project")
