"""Determine from the settings how jobs run, and where their logs and other files are stored."""

from __future__ import annotations

import stat
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from headgate.adapters.ansible.versions import Environments
from headgate.adapters.blocklist import read_nets
from headgate.adapters.logs.directory import LogDirectory
from headgate.adapters.logs.retention import RetentionPolicy
from headgate.adapters.nodes.machines import read_machines, read_variables
from headgate.adapters.process.bounds.limits import ProcessBounds
from headgate.adapters.process.confinement.users import Numbers
from headgate.adapters.process.containers.store import ImageSupply
from headgate.adapters.process.network.networks import NetworkChoice
from headgate.adapters.process.network.sockets import NetworkTarget
from headgate.adapters.process.phaselimits import PhaseLimits
from headgate.adapters.process.runner import RunnerSettings
from headgate.adapters.process.sandbox import Paths
from headgate.base.errors import LackingError, UserError
from headgate.base.files import reason, text_of
from headgate.base.private import DIRECTORY, private_directory
from headgate.cli.settings import FLAGS, Settings
from headgate.config.kinds.image import BadImageName, ImageName
from headgate.ports.logstore import LogStore

LOG_MODES = {"owner": DIRECTORY, "group": 0o750, "all": 0o755}
"""`[executor] log_access` -> mode of the directories of logs."""
MB_BYTES = 1_000_000
SECRET_MAX_BYTES = 10_000
NO_LIBRARY = "[logs] url names a bucket, which needs a library: `pip install 'headgate[s3]'` (obstore)"


def writable(settings: Settings, section: str, option: str, default: str, mode: int = DIRECTORY) -> Path:
    """Return the directory, and create it with this `mode` if necessary. Raise UserError if it is not writable."""
    path = settings.place(section, option, default)
    try:
        private_directory(path, mode)
        # Permission bits do not show, for instance, a read-only file system: try to write before the first build does.
        with tempfile.TemporaryFile(dir=path):
            return path
    except OSError as error:
        why = f"[{section}] {option}: {path} cannot be written: {error.strerror}; fix that, or set another {option}"
        raise UserError(why) from error


def log_store(settings: Settings) -> LogStore | None:
    """Return the log store without connecting to it, or None if logs stay with their executors. Raise UserError."""
    url = settings.get("logs", "url")
    at = f"{settings.path}: [logs]"
    if not url:
        # Reject options without effect: whoever set them believes, for instance, that logs go to a bucket.
        _needless(settings, at, ("endpoint", "access_key", "secret_key_file", "root"), "there is no url")
        return None
    scheme, separator, _ = url.partition("://")
    if separator and scheme == "s3":
        return _bucket(settings, url, at)
    if separator and scheme != "file":
        raise UserError(f"{at} url: unknown scheme {scheme}://; give a directory or s3://BUCKET/PREFIX")
    if separator and (urlsplit(url).netloc or not urlsplit(url).path.strip("/")):
        raise UserError(f"{at} url: {url} does not name a directory; write it as /srv/logs or file:///srv/logs")
    _needless(settings, at, ("endpoint", "access_key", "secret_key_file"), "url is a directory")
    place = settings.place("logs", "url", "") if not separator else Path(urlsplit(url).path)
    own = settings.place("executor", "log_dir", "logs")
    # If one contained the other, the executor's logs would count as stored ones, or stored ones as the executor's.
    if place.resolve().is_relative_to(own.resolve()) or own.resolve().is_relative_to(place.resolve()):
        raise UserError(f"{at} url: {place} must be neither inside nor around {own}, where executors write their logs")
    return LogDirectory(place, LOG_MODES[settings.get("executor", "log_access")])


def _needless(settings: Settings, at: str, names: tuple[str, ...], why: str) -> None:
    for name in names:
        if settings.values.get("logs", {}).get(name):
            raise UserError(f"{at} {name}: this option has no effect because {why}; remove it")


def _bucket(settings: Settings, url: str, at: str) -> LogStore:
    """Return the log store in a bucket. Raise UserError."""
    parts = urlsplit(url)
    prefix = parts.path.strip("/")
    if not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc or "//" in prefix:
        raise UserError(
            f"{at} url: write it as s3://BUCKET or s3://BUCKET/PREFIX; set keys with access_key and secret_key_file"
        )
    endpoint = settings.get("logs", "endpoint")
    if endpoint and (urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).hostname):
        raise UserError(f"{at} endpoint: give a URL such as https://minio.example:9000, not {endpoint!r}")
    key, secret = settings.get("logs", "access_key"), _secret(settings, at)
    # With only one of the two, the library would silently fall back to the machine's credentials.
    if bool(key) != bool(secret):
        raise UserError(f"{at} access_key and secret_key_file must be set together, or neither")
    try:
        from headgate.adapters.logs.bucket import BucketAddress, LogBucket  # needs an optional library
    except ImportError as error:
        raise LackingError(f"{settings.path}: {NO_LIBRARY}") from error
    try:
        return LogBucket(
            BucketAddress(parts.netloc, prefix, endpoint, settings.get("logs", "region"), key, secret),
        )
    except ValueError as error:
        raise UserError(f"{at} url: {error}") from error


def _secret(settings: Settings, at: str) -> str:
    """Read the secret of the bucket's key; empty if the settings name no file. Raise UserError."""
    if not settings.get("logs", "secret_key_file"):
        return ""
    path = settings.place("logs", "secret_key_file", "")
    try:
        # As ssh does with its keys: refuse a secret that other users can read, instead of only warning.
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise UserError(f"{at} secret_key_file: other users can read {path}; run: chmod 600 {path}")
        return text_of(path)[:SECRET_MAX_BYTES].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{at} secret_key_file: {path} cannot be read: {reason(error)}") from error


def retention_policy(settings: Settings) -> RetentionPolicy:
    """Return the retention of logs and artifacts."""
    number = settings.number
    size = int(number("logs", "size_max_mb") * MB_BYTES)
    return RetentionPolicy(number("logs", "keep_days"), number("logs", "artifacts_keep_days"), size)


def runner_settings(settings: Settings, hostname: str) -> RunnerSettings:
    """Return the settings of the build runner, including the files that they name. Raise UserError."""
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
    """Return the versions of Ansible that are installed on this machine. Raise UserError."""
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
        # Without a limit of its own, a file is limited by the build's disk space.
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
    """Return the paths to hide from builds: credentials, and files of other builds. Raise UserError."""
    # git_dir contains the repositories of all tenants, log_dir the output of all builds.
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
    # The executor's user may have keys in ~/.ssh that no setting mentions.
    return (settings.path, settings.state_dir, *named, *log_roots, Path.home() / ".ssh")


def _network(settings: Settings) -> NetworkChoice:
    """Return the rules for the network access of builds. Raise UserError."""
    at = f"{settings.path}: [executor]"
    # An empty sandbox_network_trusted means the same as sandbox_network.
    every, trusted = (settings.get("executor", f"sandbox_network{which}") for which in ("", "_trusted"))
    try:
        deny = tuple(read_nets(settings.get("executor", "sandbox_network_deny")))
    except ValueError as error:
        raise UserError(f"{at} sandbox_network_deny: {error}") from error
    allow = settings.get("executor", "sandbox_network_allow").split()
    try:
        found = tuple(NetworkTarget.read(word) for word in allow)
    except ValueError as error:
        raise UserError(f"{at} sandbox_network_allow: {error} is not HOST:PORT") from error
    return NetworkChoice(trusted=trusted or every, untrusted=every, deny=deny, allow=found)


def _users(settings: Settings) -> Numbers | None:
    """Return the range of user ids that builds run as, or None if it is not set. Raise UserError."""
    users = settings.get("executor", "build_users")
    try:
        return Numbers.read(users) if users else None
    except ValueError as error:
        raise UserError(f"{settings.path}: [executor] build_users must be FIRST-LAST, not {users!r}") from error


def image_supply(settings: Settings) -> ImageSupply | None:
    """Return the image supply for jobs in containers, or None if jobs do not run in containers. Raise UserError."""
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
