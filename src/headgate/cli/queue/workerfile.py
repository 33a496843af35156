"""Read the settings file of a queue worker: an INI file with the names of the original qdo, and further ones."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headgate.base.errors import UserError
from headgate.base.hints import similar, with_hint
from headgate.cli.inifile import IniFile, read_ini, wrong_url
from headgate.cli.queue.workeroptions import IGNORED, NOT_LEASED, OPTIONS, RETRY, SERVER, WorkerOption
from headgate.map.workers import ROOT, Application, QueueMap
from headgate.queue.messages.client import ordered
from headgate.queue.workers.processor import JobPace
from headgate.queue.workers.shares import WorkerScope
from headgate.queueing.partitions import QueuePartition, parse_partition
from headgate.queueing.policy import Policy, Routing, RoutingRule
from headgate.store.registry import STORES, scheme_of

DEFAULT = "etc/qdo-worker.conf"
EXTENDS_MAX = 5
KEY_FILE = "messages.key"
"""File in a message server's state directory, with the key that the server created."""
WORKER, OLD_FAILURES = "qdo-worker", {"qdo.worker:log_failure": "log", "qdo.worker:save_failed_message": ""}
_FIELDS = {
    "delay": "retry_delay_s", "factor": "retry_factor", "delay_max": "retry_delay_max_s", "time_limit": "time_limit_s",
}  # fmt: skip
"""Option of [retry] -> its name in a policy, if it differs."""
FLAGS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_HOOK = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_APP = re.compile(r"[A-Za-z0-9._-]{1,100}")


@dataclass(frozen=True, slots=True)
class WorkerFile:
    """Hold the validated values of the file."""

    path: Path
    urls: tuple[str, ...] = ("http://127.0.0.1:5000/v1/queuey/",)
    key: str = ""
    app_name: str = "queuey"
    group: str = ""
    """Group of workers; empty for the default group."""
    root: str = ROOT
    """Root path in the store."""
    store_url: str = ""
    job: str = ""
    context: str = ""
    failure: str = ""
    name: str = ""
    choice: WorkerScope = field(default_factory=WorkerScope)
    policy: Policy = field(default_factory=Policy)
    queues: tuple[tuple[str, str, Policy], ...] = ()
    """Pattern of queue names, job and policy; the first match applies."""
    pace: JobPace = field(default_factory=JobPace)
    concurrency: int = 100
    threads: int = 100
    listen: str = "127.0.0.1:0"
    memory_max_mb: int = 0
    session_s: float = 15.0
    ca_bundle: str = ""
    ca: Path | None = None
    """File with the CA of the message servers' certificates; None for the system's CAs."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Hook -> the file and line that name it."""

    @property
    def leases(self) -> bool:
        """Return whether the workers have no store, so that the message server leases partitions to them."""
        return self.store_url == SERVER

    @property
    def app(self) -> Application:
        """Return the application in the store, where each group counts as a separate application."""
        return QueueMap(self.root).app(f"{self.app_name}@{self.group}" if self.group else self.app_name)

    def routes(self) -> Routing:
        """Return the routes. Raise UserError if a hook cannot be loaded."""
        named = [RoutingRule(pattern, self.hook(job or self.job), policy) for pattern, job, policy in self.queues]
        rest = [RoutingRule("*", self.hook(self.job), self.policy)] if self.job else []
        return Routing((*named, *rest))

    def hook(self, name: str) -> Callable[..., Any]:  # a function of the user's
        """Load `module.path:function` from the directory of the file, or from Python's module path. Raise UserError."""
        module, colon, function = name.partition(":")
        at = self.places.get(name, str(self.path))
        if not colon or not module or not function:
            raise UserError(f"{at}: {name!r} is not the name of a function: write module.path:function")
        # Put the directory first, as Python does for scripts: jobs next to the file override installed packages.
        beside = str(self.path.parent)
        if beside not in sys.path:
            sys.path.insert(0, beside)
        try:
            found = getattr(importlib.import_module(module), function)
        except Exception as error:  # importing the module may raise anything
            raise UserError(f"{at}: {name}: {type(error).__name__}: {error}") from error
        if not callable(found):
            raise UserError(f"{at}: {name} is not a function")
        return found  # type: ignore[no-any-return]  # any function of the user's


def read_worker_file(path: Path, environment: Mapping[str, str] = os.environ) -> WorkerFile:
    """Read the file. Raise UserError with file and line."""
    ini = _extended(path, environment, EXTENDS_MAX)
    for section, options in ini.sections.items():
        _known(ini, section, options)
    return _file(ini, _Values(ini, environment))


def usual(directory: Path) -> WorkerFile:
    """Return defaults for use without a file, with the key of a message server below this directory, if any."""
    ini = IniFile(directory / DEFAULT, {}, {})
    key = directory / "state" / KEY_FILE
    try:
        return replace(_file(ini, _Values(ini, {})), key=key.read_text().strip() if key.is_file() else "")
    except OSError as error:
        raise UserError(f"{key}: cannot be read: {error.strerror}") from error


def _file(ini: IniFile, get: _Values) -> WorkerFile:
    connection, chroot = _split(get.text("zookeeper", "connection"))
    store = get.text("store", "url", "")
    root = get.text(WORKER, "namespace", ROOT if store else chroot or ROOT).rstrip("/")
    # In a ZooKeeper of the original's, which may be shared, use only the namespace.
    if connection and not store:
        store, root = f"zookeeper://{connection}{root}?adopt=yes", ""
    if store == SERVER:
        _leasable(ini, get)
    urls, policy = tuple(get.listed("queuey", "connection")), get.policy("retry", Policy())
    try:
        ordered(urls)
    except UserError as error:
        raise UserError(f"{ini.at('queuey', 'connection')}: {error}") from error
    found = WorkerFile(
        ini.path,
        urls,
        get.text("queuey", "app_key"),
        get.text(WORKER, "app") or urlsplit(urls[0]).path.strip("/").rpartition("/")[2],
        get.text(WORKER, "group"),
        root,
        _placed(ini.path, store or OPTIONS["store"]["url"].default),
        job=get.text(WORKER, "job"),
        context=get.text(WORKER, "job_context"),
        failure=get.text(WORKER, "job_failure"),
        name=get.text(WORKER, "name"),
        policy=policy,
        queues=tuple(get.queue(section, policy) for section in ini.sections if section.startswith("queue ")),
        pace=_pace(get),
        concurrency=get.integer(WORKER, "concurrency"),
        threads=get.integer(WORKER, "threads"),
        listen=get.text(WORKER, "listen"),
        memory_max_mb=get.integer(WORKER, "memory_max_mb"),
        session_s=get.number(WORKER, "session_timeout"),
        ca_bundle=get.text(WORKER, "ca_bundle"),
        ca=ini.path.parent / ca if (ca := get.text("tls", "ca")) else None,
        places={name: ini.at(*at) for name, at in get.hooks.items()},
    )
    # Without a default job, the worker must not take partitions that it cannot process.
    patterns = () if found.job else tuple(pattern for pattern, _, _ in found.queues)
    automatic = (get.text("partitions", "policy") or ("automatic" if connection else "manual")) == "automatic"
    only = frozenset(get.partition(text) for text in get.listed("partitions", "ids"))
    return replace(found, choice=WorkerScope(patterns, only, not automatic))


def _leasable(ini: IniFile, get: _Values) -> None:
    """Raise UserError for options that work only with a store."""
    for section, options in ini.sections.items():
        kind = "queue *" if section.startswith("queue ") else section
        for option in options:
            why = NOT_LEASED.get((kind, option))
            if why and get.text(section, option) not in ("automatic", OPTIONS[kind][option].default):
                raise UserError(
                    f"{ini.at(section, option)}: {option} cannot be used with `[store] url = {SERVER}`: {why}"
                )


def _pace(get: _Values) -> JobPace:
    wait_s = get.number(WORKER, "wait_interval")
    old = get.is_set("zookeeper", "party_wait") and not get.is_set(WORKER, "settle")
    return JobPace(
        page=get.integer(WORKER, "page"),
        commit_count=get.integer(WORKER, "commit_count"),
        commit_s=get.number(WORKER, "commit_interval"),
        idle_s=min(wait_s, 30.0),
        poll_s=min(wait_s, 5.0),
        settle_s=get.number("zookeeper", "party_wait") if old else get.number(WORKER, "settle"),
        drain_s=get.number(WORKER, "drain"),
        patience_s=get.number(WORKER, "patience"),
    )


class _Values:
    """Convert values like the original: quotes, `${VAR}`, and lists on several lines. Also allow trailing comments."""

    def __init__(self, ini: IniFile, environment: Mapping[str, str]) -> None:
        self._ini, self._environment = ini, environment
        self.hooks: dict[str, tuple[str, str]] = {}
        """Hook -> the file and line that name it."""

    def is_set(self, section: str, option: str) -> bool:
        return bool(self._ini.sections.get(section, {}).get(option, ""))

    def text(self, section: str, option: str, default: str | None = None) -> str:
        """Return the text of the option. Raise UserError if it is not valid."""
        of = OPTIONS["queue *" if section.startswith("queue ") else section][option]
        raw = self._ini.sections.get(section, {}).get(option, "")
        # An option may have several lines, each with its own quotes and comment.
        value = "\n".join(filter(None, (self._bare(section, option, line) for line in raw.splitlines())))
        value = re.sub(r"\$\{(\w+)\}", lambda match: self._variable(section, option, match[1]), value)
        if not value:
            return of.default if default is None else default
        if why := _wrong(of, value, self._ini.path.parent):
            raise UserError(f"{self._ini.at(section, option)}: {option} {why}, not {_shown(option, value)}")
        if of.kind == "hook":
            self.hooks.setdefault(value, (section, option))
        return value

    def _bare(self, section: str, option: str, line: str) -> str:
        """Return the line without quotes and without a trailing comment. Raise UserError."""
        line = line.strip()
        if line.startswith('"'):
            quoted = re.fullmatch(r'"([^"]*)"\s*(?:[;#].*)?', line)
            if quoted is None:
                where = self._ini.at(section, option)
                raise UserError(f"{where}: {option}: the closing quote is missing, or text follows it")
            return quoted[1]
        return re.split(r"(?:^|\s)[;#]", line, maxsplit=1)[0].rstrip()

    def _variable(self, section: str, option: str, name: str) -> str:
        if name not in self._environment:
            raise UserError(f"{self._ini.at(section, option)}: the environment variable {name} is not set")
        return self._environment[name]

    def listed(self, section: str, option: str) -> list[str]:
        return [part for part in re.split(r"[\s,]+", self.text(section, option)) if part]

    def number(self, section: str, option: str) -> float:
        return float(self.text(section, option))

    def integer(self, section: str, option: str) -> int:
        return int(float(self.text(section, option)))

    def partition(self, text: str) -> QueuePartition:
        try:
            return parse_partition(text)
        except ValueError as error:
            raise UserError(f"{self._ini.at('partitions', 'ids')}: {error}") from error

    def policy(self, section: str, base: Policy) -> Policy:
        found: dict[str, Any] = {}  # numbers and booleans
        for option in RETRY:
            name = _FIELDS.get(option, option)
            default = getattr(base, name)
            text = self.text(section, option) if self.is_set(section, option) else ""
            if not text:
                found[name] = default
            else:
                found[name] = FLAGS[text.lower()] if isinstance(default, bool) else type(default)(float(text))
        try:
            return Policy(**found)
        except ValueError as error:
            raise UserError(f"{self._ini.at(section)}: {error}") from error

    def queue(self, section: str, base: Policy) -> tuple[str, str, Policy]:
        pattern = section.partition(" ")[2].strip("\"' ")
        if not pattern:
            raise UserError(f"{self._ini.at(section)}: [queue] needs a pattern, as in [queue orders-*]")
        return pattern, self.text(section, "job"), self.policy(section, base)


def _wrong(of: WorkerOption, value: str, beside: Path) -> str:
    """Return the problem with the value, or an empty string if it is valid."""
    match of.kind:
        case "whole" | "number":
            adjective = "whole " if of.kind == "whole" else ""
            # `float` would also accept `inf`, `nan` and `1_000`.
            good = re.fullmatch(r"[0-9]+" if adjective else r"[0-9]*\.?[0-9]+([eE][+-]?[0-9]+)?", value)
            wanted = f"must be a {adjective}number from {of.low:g} to {of.high:,.0f}"
            return "" if good and of.low <= float(value) <= of.high else wanted
        case "flag":
            return "" if value.lower() in FLAGS else "must be yes or no"
        case "hook":
            return "" if _HOOK.fullmatch(value) or value == "log" else "must name a function, as module.path:function"
        case "name":
            return "" if _APP.fullmatch(value) else "must be the name of an application"
        case "address":
            host, colon, port = value.rpartition(":")
            good_port = colon and port.isdecimal() and int(port) <= 65_535
            return "" if good_port and not re.search(r"\s", host) else "must be HOST:PORT"
        case "url":
            good_url = value == SERVER or scheme_of(value) is not None
            return "" if good_url else f"must be {SERVER}, or begin with one of {', '.join(STORES)}"
        case "path":
            good_path = value.startswith("/") or (beside / value).exists()
            return "" if good_path else "must be a path that begins with a slash, or a file next to this one"
        case "text" | "list":
            return wrong_url(value)
    return "" if value in of.kind.split("|") else f"must be one of {of.kind.replace('|', ', ')}"


def _shown(option: str, value: str) -> str:
    # The message may end up in a log, so it must not quote keys.
    return "the current value" if "key" in option else repr(value[:80])


def _extended(path: Path, environment: Mapping[str, str], depth: int) -> IniFile:
    """Read the file, and add missing options from the files that it extends. Raise UserError."""
    ini = read_ini(path, environment)
    sections = {name: dict(options) for name, options in ini.sections.items()}
    lines = dict(ini.lines)
    for name in sections.get("default", {}).get("extends", "").split():
        if depth == 0:
            raise UserError(f"{path}: `extends` is nested more than {EXTENDS_MAX} levels deep")
        base = _extended(path.parent / name, environment, depth - 1)
        for section, options in base.sections.items():
            # The file's own options override those of the files that it extends.
            sections[section] = {**options, **sections.get(section, {})}
        lines = {**base.lines, **lines}
    return IniFile(path, sections, lines)


def _known(ini: IniFile, section: str, options: Mapping[str, str]) -> None:
    """Check that the section and its options are known. Raise UserError."""
    if section.startswith(IGNORED):
        return
    kind = "queue *" if section.startswith("queue ") else section
    if kind not in OPTIONS:
        raise UserError(with_hint(f"{ini.at(section)}: unknown section [{section}]", similar(section, OPTIONS)))
    for option in options:
        if option not in OPTIONS[kind]:
            text = f"{ini.at(section, option)}: unknown option {option!r}"
            raise UserError(with_hint(text, similar(option, OPTIONS[kind])))


def _split(connection: str) -> tuple[str, str]:
    """Split a ZooKeeper connection string into its hosts and the path after them."""
    hosts, slash, path = connection.partition("/")
    return hosts, slash + path.rstrip("/")


def _placed(path: Path, url: str) -> str:
    """Resolve a relative SQLite file against the directory of the settings file."""
    scheme, mark, file = url.partition("sqlite:///")
    return f"sqlite:///{(path.parent / file).absolute()}" if mark and not scheme else url
