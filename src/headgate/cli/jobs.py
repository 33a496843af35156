"""Determine from the settings how jobs are run."""

from __future__ import annotations

from pathlib import Path

from headgate.adapters.ansible.environments import Environments
from headgate.adapters.blocklist import read_nets
from headgate.adapters.logs.directory import LogDirectory
from headgate.adapters.nodes.machines import read_machines, read_variables
from headgate.adapters.process.bounds.limits import ProcessBounds
from headgate.adapters.process.confinement.users import Numbers
from headgate.adapters.process.containers.store import ImageSupply
from headgate.adapters.process.network.networks import NetworkChoice
from headgate.adapters.process.network.sockets import NetworkTarget
from headgate.adapters.process.phases import PhaseLimits
from headgate.adapters.process.runner import RunnerSettings
from headgate.adapters.process.sandbox import Paths
from headgate.base.errors import UserError
from headgate.cli.logstore import log_store
from headgate.cli.settings import FLAGS, Settings
from headgate.config.kinds.image import BadImageName, ImageName

MB_BYTES = 1_000_000


def runner_settings(settings: Settings, hostname: str) -> RunnerSettings:
    """Read the files that the settings name. Raise UserError."""
    get, number = settings.get, settings.number
    nodes, variables = get("executor", "nodes"), get("executor", "variables")
    return RunnerSettings(
        sandbox=get("executor", "sandbox"),
        network=_network(settings),
        users=_users(settings),
        log_size_max_bytes=int(number("executor", "log_size_max_mb") * MB_BYTES),
        files_size_max_bytes=int(number("executor", "files_size_max_mb") * MB_BYTES),
        hostname=hostname,
        limits=PhaseLimits(timeout_s=int(number("executor", "default_timeout"))),
        bounds=_bounds(settings),
        trusted=_paths(settings, "trusted"),
        untrusted=_paths(settings, "untrusted"),
        hidden=_hidden(settings),
        variables=read_variables(settings.place("executor", "variables", "")) if variables else {},
        machines=read_machines(settings.place("executor", "nodes", "")) if nodes else (),
        ansible=environments(settings),
        images=image_supply(settings),
        manage_ansible=FLAGS[get("executor", "manage_ansible").lower()],
        warm_ansible=FLAGS[get("executor", "warm_ansible").lower()],
    )


def environments(settings: Settings) -> Environments:
    """Return the versions of Ansible of this machine."""
    root = settings.place("executor", "ansible_root", "ansible")
    if not settings.get("executor", "ansible_packages"):
        return Environments(root)
    more = settings.place("executor", "ansible_packages", "")
    if not more.is_file():
        raise UserError(f"{settings.path}: [executor] ansible_packages: there is no file {more}")
    return Environments(root, more=more)


def _bounds(settings: Settings) -> ProcessBounds:
    def count(option: str) -> int:
        return int(settings.number("executor", option))

    def size_bytes(option: str) -> int:
        return int(settings.number("executor", option) * MB_BYTES)

    return ProcessBounds(
        memory_max_bytes=size_bytes("memory_max_mb"),
        processes_max=count("processes_max"),
        disk_max_bytes=size_bytes("disk_max_mb"),
        files_max=count("files_max"),
        open_files_max=count("open_files_max"),
        # A file larger than what the build may have on disk is beyond the limit anyway.
        file_size_max_bytes=size_bytes("file_size_max_mb") or size_bytes("disk_max_mb"),
        tmp_size_max_bytes=size_bytes("tmp_size_max_mb"),
        output_max_bytes=size_bytes("output_max_mb"),
        reserve_bytes=size_bytes("disk_reserve_mb"),
    )


def _paths(settings: Settings, trust: str) -> Paths:
    def listed(option: str) -> tuple[Path, ...]:
        names = settings.get("executor", option).split(":")
        return tuple((settings.path.parent / Path(name).expanduser()).absolute() for name in names if name)

    nesting = FLAGS[settings.get("executor", f"{trust}_user_namespaces").lower()]
    return Paths(listed(f"{trust}_ro_paths"), listed(f"{trust}_rw_paths"), nesting)


def _hidden(settings: Settings) -> tuple[Path, ...]:
    """Return the paths that hold credentials, or belong to other builds. Raise UserError."""
    # git_dir has the repositories of all tenants, log_dir the output of all builds.
    places = (
        ("merger", "git_dir"),
        ("executor", "job_dir"),
        ("executor", "log_dir"),
        ("executor", "nodes"),
        ("executor", "variables"),
        ("logs", "secret_key_file"),
    )
    named = (settings.place(section, option, "") for section, option in places if settings.get(section, option))
    store = log_store(settings)
    log_roots = (store.root,) if isinstance(store, LogDirectory) else ()
    # Agents and tools of the executor's user keep keys there, whatever the settings say.
    return (settings.path, settings.state_dir, *named, *log_roots, Path.home() / ".ssh")


def _network(settings: Settings) -> NetworkChoice:
    """Read what builds may reach on the network. Raise UserError."""
    at = f"{settings.path}: [executor]"
    # An empty value for trusted playbooks stands for the general one.
    every, trusted = (settings.get("executor", f"sandbox_network{which}") for which in ("", "_trusted"))
    try:
        deny = tuple(read_nets(settings.get("executor", "sandbox_network_deny")))
    except ValueError as error:
        raise UserError(f"{at} sandbox_network_deny: {error}") from error
    allow = settings.get("executor", "sandbox_network_allow").split()
    try:
        found = tuple(NetworkTarget.read(word) for word in allow)
    except ValueError as error:
        raise UserError(f"{at} sandbox_network_allow: {error} is no HOST:PORT") from error
    return NetworkChoice(trusted=trusted or every, untrusted=every, deny=deny, allow=found)


def _users(settings: Settings) -> Numbers | None:
    """Read the numbers of the users that builds run as; None if none are set. Raise UserError."""
    users = settings.get("executor", "build_users")
    try:
        return Numbers.read(users) if users else None
    except ValueError as error:
        raise UserError(f"{settings.path}: [executor] build_users must be FIRST-LAST, not {users!r}") from error


def image_supply(settings: Settings) -> ImageSupply | None:
    """Return the image supply for jobs in containers; None: there are none. Raise UserError."""
    get = settings.get
    if get("executor", "sandbox") != "container":
        return None
    if default := get("executor", "image"):
        try:
            ImageName.read(default)
        except BadImageName as bad:
            raise UserError(f"{settings.path}: [executor] image: {bad}") from bad
    return ImageSupply(
        settings.place("executor", "image_dir", "images"),
        tuple(get("executor", "images").split()),
        int(settings.number("executor", "images_size_max_mb") * MB_BYTES),
        default,
    )
