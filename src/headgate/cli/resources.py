"""Open the resources that the settings name: connections, forges, clouds, the tenant file, the store."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.adapters.forges.gerrit.server import PORT
from headgate.adapters.forges.registry import FORGES, Connected, DriverOptions, connect
from headgate.adapters.git.connection import Access, GitConnection, Poked
from headgate.adapters.nodes.clouds.registry import CLOUDS, RATE, CloudDriverOptions
from headgate.adapters.nodes.clouds.registry import connect as connect_cloud
from headgate.adapters.reporters.registry import REPORTERS
from headgate.base.errors import UserError
from headgate.base.files import text_of
from headgate.cli.settings import Settings
from headgate.cli.store.urls import SQLITE, open_to_read, open_url, user_error
from headgate.cli.terminal.say import say
from headgate.config.operator.file import parse_tenant_file
from headgate.config.operator.model import ConfigErrors, Connection, Tenant, TenantFile, TenantProject
from headgate.map.places import Map
from headgate.map.records import Formats
from headgate.ports.clouds import Cloud
from headgate.ports.limits import Alone, ForgeLimits
from headgate.recipes import codec
from headgate.services.membership import refuse_formats
from headgate.store.types import Backend, StoreError
from headgate.web.review.remarks import Speaker
from headgate.web.shapes import ConnectionShape

if TYPE_CHECKING:
    from headgate.adapters.git.engine import GitEngine

SCRIPT_TIMEOUT_S = 60
"""Seconds that the program of `tenant_config_script` may run."""
SSH = ("sshkey", "known_hosts")
"""Options of plain git that name files for ssh."""
_CREDENTIALS = r"(://).*@"  # up to the last @: a password may contain others, and slashes


def connections(settings: Settings) -> dict[str, GitConnection]:
    """Return, by name, the connections that have repositories, plain git and forges alike. Raise UserError."""
    return {**plain(settings), **{name: one.git for name, one in connected(settings).items()}}


def plain(settings: Settings) -> dict[str, GitConnection]:
    """Return the connections with the driver git."""
    return {
        name: GitConnection(
            name,
            _baseurl(settings, found["baseurl"]),
            found.get("canonical_hostname", ""),
            poll_interval_s=float(found.get("poll_delay") or 30),
            access=_by_ssh(settings, found),
        )
        for name, found in settings.connections.items()
        if driver_of(found) == "git"
    }


def _by_ssh(settings: Settings, found: Mapping[str, str]) -> Access | None:
    """Return git's ssh access for a connection with its own key or host keys, or None to use the user's."""
    paths = {name: str(settings.path.parent / Path(found[name]).expanduser()) for name in SSH if found.get(name)}
    if not paths:
        return None
    # BatchMode: nobody can answer a prompt. ControlPath: a shared master connection could use another connection's
    # key. ServerAliveInterval: a dead server ends git instead of blocking it forever.
    options = {"BatchMode": "yes", "ControlPath": "none", "ServerAliveInterval": "30"}
    if "sshkey" in paths:
        # Without IdentitiesOnly, ssh offers the agent's keys first, and the server may map one of them to another user.
        options |= {"IdentitiesOnly": "yes", "IdentityFile": f'"{paths["sshkey"]}"'}
    if "known_hosts" in paths:
        # Trust only the operator's file: no system-wide file may add hosts, and ssh must not add any itself. The quotes
        # protect paths with spaces, because ssh splits these values at spaces.
        options |= {"StrictHostKeyChecking": "yes", "UpdateHostKeys": "no"}
        options |= {"UserKnownHostsFile": f'"{paths["known_hosts"]}"', "GlobalKnownHostsFile": "/dev/null"}
    words = ["ssh", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
    config = {"core.sshCommand": shlex.join(words)}

    async def access(project: str) -> Mapping[str, str]:
        return config

    return access


def _no_engine() -> GitEngine:
    raise AssertionError("a driver must not read repositories while it connects")


def _alone(_connection: str) -> ForgeLimits:
    return Alone()


def connected(
    settings: Settings,
    engine: Callable[[], GitEngine] = _no_engine,
    limits: Callable[[str], ForgeLimits] = _alone,
) -> dict[str, Connected]:
    """Return the connected forges by connection name. Raise UserError for errors in a section."""
    found: dict[str, Connected] = {}
    for name, section in settings.connections.items():
        if is_forge(driver := driver_of(section)):
            # Everywhere in the settings, an option with an empty value counts as not set.
            filled = {key: value for key, value in section.items() if value}
            given = DriverOptions(
                name, filled, settings.path.parent, engine, lambda: int(time.time() * 1000), limits(name)
            )
            try:
                found[name] = connect(driver, given)
            except UserError as error:
                raise UserError(f"{settings.path}: [connection {name}]: {error}") from error
    return found


def is_forge(driver: str) -> bool:
    """Return whether the driver has changes of its own and is not plain git."""
    return driver in FORGES


def poke_secrets(settings: Settings) -> dict[str, str]:
    """Return, by name, the secrets of the plain git connections whose servers may poke."""
    plain_git = {name: one for name, one in settings.connections.items() if driver_of(one) == "git"}
    return {name: one["webhook_token"] for name, one in plain_git.items() if one.get("webhook_token")}


def poked(
    settings: Settings, tenants: Callable[[], Mapping[str, Tenant]], now_ms: Callable[[], int]
) -> dict[str, Poked]:
    """Return a receiver of pokes for each connection that has a secret for them."""

    def projects() -> Iterator[TenantProject]:
        for tenant in tenants().values():
            yield from tenant.projects

    return {name: Poked(name, secret, projects, now_ms) for name, secret in poke_secrets(settings).items()}


def driver_of(connection: Mapping[str, str]) -> str:
    return connection.get("driver") or "git"


def connection_shapes(settings: Settings) -> tuple[ConnectionShape, ...]:
    """Return the connections as the API shows them, without the passwords in their URLs."""
    sources = connections(settings)
    return tuple(
        ConnectionShape(
            name=name,
            driver=driver_of(found),
            baseurl=_shown(found),
            canonical_hostname=sources[name].canonical_hostname if name in sources else "",
            source=name in sources,
            **_server_of(found),
        )
        for name, found in settings.connections.items()
    )


def _server_of(found: Mapping[str, str]) -> dict[str, Any]:  # fields of ConnectionShape
    """Return the fields of ConnectionShape that only forges have."""
    driver = driver_of(found)
    if driver not in FORGES:
        return {}
    server = re.sub(_CREDENTIALS, r"\1", _host_of(found))
    match driver:
        case "github":
            return {"server": server, "repo_cache": found.get("repo_cache") or None}
        case "gerrit":
            port = int(found.get("port") or PORT)
            return {"server": server, "ssh_server": found.get("ssh_server") or server, "port": port}
        case _:
            return {"server": server} if server else {}


def _host_of(found: Mapping[str, str]) -> str:
    """Return the server of a forge from its section, or else the driver's default."""
    usual = FORGES[driver_of(found)].settings.get("server")
    return found.get("server") or (usual.default if usual is not None else "")


def _shown(found: Mapping[str, str]) -> str:
    """Return the display form of a connection's target. URLs of webhooks and chats are secrets: return only their host
    or kind."""
    match driver_of(found):
        case driver if driver in FORGES:
            server = _host_of(found)
            url = found.get("baseurl") or (server if "://" in server else f"https://{server}")
            return re.sub(_CREDENTIALS, r"\1", url)
        case driver if driver in REPORTERS:
            return REPORTERS[driver].shown(found)
        case "inventory":
            return f"{found.get('project')}@{found.get('partition')}"
        case _:
            return re.sub(_CREDENTIALS, r"\1", found.get("baseurl") or found.get("url") or "")


def _baseurl(settings: Settings, url: str) -> str:
    """Return the base URL with `~` expanded; a relative directory is relative to the settings file."""
    # `host:path` is git's short form of an ssh address, not a relative directory.
    if "://" in url or url.startswith(("/", "~")) or ":" in url.split("/")[0]:
        return os.path.expanduser(url)
    return str((settings.path.parent / url).absolute())


def cloud_names(settings: Settings) -> list[str]:
    """Return the names of the connections that can create machines."""
    return [name for name, section in settings.connections.items() if section.get("driver") in CLOUDS]


def cloud(settings: Settings, name: str) -> Cloud:
    """Return a cloud, without sending it a request. Raise UserError for errors in its section, and MissingLibrary."""
    section = {key: value for key, value in settings.connections[name].items() if value}
    try:
        return connect_cloud(section["driver"], CloudDriverOptions(name, section, settings.path.parent))
    except UserError as error:
        raise type(error)(f"{settings.path}: [connection {name}]: {error}") from error


def rate(settings: Settings, name: str) -> float:
    """Return the limit on requests per second to a cloud, or 0 for no limit."""
    if not CLOUDS[settings.connections[name]["driver"]].rated:
        return 0.0
    return float(settings.connections[name].get("rate") or RATE.default)


def tenants(settings: Settings, at: dict[str, GitConnection]) -> tuple[str, TenantFile]:
    """Return the text and the parsed content of the tenant file; print the errors in it. Raise UserError."""
    text = tenant_text(settings)
    return text, loadable(settings, tenant_file(settings, at, text))


def tenant_file(settings: Settings, at: dict[str, GitConnection], text: str) -> TenantFile:
    """Parse the text of a tenant file. Raise UserError."""
    try:
        return parse_tenant_file(text, str(settings.tenant_config), known_connections(settings, at))
    except ConfigErrors as errors:
        raise UserError(str(errors)) from errors


def loadable(settings: Settings, found: TenantFile) -> TenantFile:
    """Print the errors in a tenant file, and return it. Raise UserError if none of its tenants can be loaded."""
    for problem in (*found.warnings, *(problem for errors in found.refused.values() for problem in errors)):
        say(problem.render(), err=True)
    if found.refused and not found.tenants:
        raise UserError(f"{settings.tenant_config}: no tenant can be loaded")
    return found


def tenant_text(settings: Settings) -> str:
    """Return the text of the tenant file, or the output of `tenant_config_script`. Raise UserError."""
    path, script = settings.tenant_config, settings.tenant_config_script
    try:
        if script is None:
            return text_of(path)
        done = subprocess.run([script], capture_output=True, text=True, timeout=SCRIPT_TIMEOUT_S)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: the tenant file is not UTF-8 text: {error}") from error
    except OSError as error:
        what = "the tenant file cannot be read" if script is None else "the tenant_config_script cannot be run"
        raise UserError(f"{path}: {what}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise UserError(f"{path}: the tenant_config_script did not finish within {SCRIPT_TIMEOUT_S} s") from error
    # Quote the end of its output: the reason of a failure is there, and the beginning may be pages of progress.
    if done.returncode:
        raise UserError(
            f"{path}: the tenant_config_script ended with status {done.returncode}: {done.stderr.strip()[-1000:]}"
        )
    return done.stdout


def known_connections(settings: Settings, at: dict[str, GitConnection]) -> dict[str, Connection]:
    """Return the connections by the names that a tenant file and pipelines use for them."""
    return {
        name: Connection(
            name, at[name].canonical_hostname if name in at else "", driver_of(found), found.get("approvals") == "bound"
        )
        for name, found in settings.connections.items()
    }


def speakers_of(settings: Settings) -> dict[str, Speaker]:
    """Return the rules of approval on the pages, for each plain git connection. Raise UserError for an unknown
    [auth]."""
    found = dict[str, Speaker]()
    for name, section in settings.connections.items():
        people = section.get("people", "")
        if people and people not in settings.authenticators:
            raise UserError(f"{settings.path}: [connection {name}] people = {people}: there is no [auth {people}]")
        if driver_of(section) == "git":
            found[name] = Speaker(people, section.get("approvals") == "bound")
    return found


async def open_store(settings: Settings) -> Backend:
    """Open the store. Raise UserError, for example if a newer Headgate wrote the store, and StoreAway if no server
    answers."""
    return await _of_our_format(await open_url(settings.store_url))


async def open_store_to_read(settings: Settings) -> Backend:
    """Open the store for reading, while another process writes it. Raise the same errors as `open_store`."""
    url = settings.store_url
    return await _of_our_format(await (open_to_read(url) if url.startswith(SQLITE) else open_url(url)))


async def _of_our_format(backend: Backend) -> Backend:
    """Return the store, or close it and raise UserError if this version cannot read its format."""
    place = Map().system.formats
    try:
        entry = await backend.get(place.path)
        # A store without this entry is new or has the first format.
        refuse_formats(place.decode(entry.value) if entry else Formats(1), codec.FORMAT)
    except (StoreError, ValueError) as error:
        # An unclosed store would keep its lock or its connection for the lifetime of the process.
        await backend.close()
        raise (user_error(error) if isinstance(error, StoreError) else UserError(str(error))) from error
    return backend
