"""The settings file of a queue worker: INI, with the sections and names of the original qdo, and ours beside them."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headgate.base.errors import UserError
from headgate.cli.inifile import IniFile, read_ini
from headgate.map.workers import ROOT, Application, QueueMap
from headgate.queueing.lanes import Lane, parse_lane
from headgate.queueing.policy import Policy, Route, Routes
from headgate.services.queueing.desk import Pace
from headgate.services.queueing.sharing import Choice

DEFAULT = "etc/qdo-worker.conf"
EXTENDS_MAX = 5
WORKER, OLD_FAILURES = "qdo-worker", {"qdo.worker:log_failure": "log", "qdo.worker:save_failed_message": ""}
_RETRY = {
    "attempts": "attempts", "deaths": "deaths", "losses": "losses", "departures": "departures",
    "delay": "retry_delay_s", "factor": "retry_factor", "delay_max": "retry_delay_max_s",
    "jitter": "jitter", "blocking": "blocking", "time_limit": "time_limit_s", "batch": "batch",
}  # fmt: skip
KNOWN: dict[str, tuple[str, ...]] = {
    WORKER: (
        "job", "job_context", "job_failure", "name", "ca_bundle", "wait_interval", "app", "namespace", "concurrency",
        "threads", "listen", "memory_max_mb", "drain", "page", "commit_count", "commit_interval", "session_timeout",
        "settle",
    ),
    "partitions": ("policy", "ids"),
    "queuey": ("connection", "app_key"),
    "zookeeper": ("connection", "party_wait"),
    "store": ("url",),
    "retry": tuple(_RETRY),
    "queue *": ("job", *_RETRY),
}  # fmt: skip
IGNORED = ("metlog", "default")
"""Sections of old files that mean nothing here, or are read elsewhere; with what begins like them."""


@dataclass(frozen=True, slots=True)
class WorkerFile:
    """Checked values."""

    path: Path
    urls: tuple[str, ...] = ("http://127.0.0.1:5000/v1/queuey/",)
    key: str = ""
    app_name: str = "queuey"
    root: str = ROOT
    """Of the tree in the store."""
    store_url: str = ""
    job: str = ""
    context: str = ""
    failure: str = ""
    name: str = ""
    choice: Choice = field(default_factory=Choice)
    policy: Policy = field(default_factory=Policy)
    queues: tuple[tuple[str, str, Policy], ...] = ()
    """Pattern, job, policy."""
    pace: Pace = field(default_factory=Pace)
    concurrency: int = 100
    threads: int = 100
    listen: str = "127.0.0.1:0"
    memory_max_mb: int = 0
    session_s: float = 15.0
    ca_bundle: str = ""

    @property
    def app(self) -> Application:
        return QueueMap(self.root).app(self.app_name)

    def routes(self) -> Routes:
        """Raises UserError when a hook cannot be had."""
        named = [Route(pattern, self.hook(job or self.job), policy) for pattern, job, policy in self.queues]
        rest = [Route("*", self.hook(self.job), self.policy)] if self.job else []
        return Routes((*named, *rest))

    def hook(self, name: str) -> Callable[..., Any]:  # people's own functions
        """`module.path:function`, found as Python finds modules, or beside the file.  Raises UserError."""
        module, colon, function = name.partition(":")
        if not colon or not module or not function:
            raise UserError(f"{self.path}: {name!r} names no function: write module.path:function")
        beside = str(self.path.parent)
        if beside not in sys.path:
            sys.path.insert(0, beside)
        try:
            found = getattr(importlib.import_module(module), function)
        except Exception as error:  # whatever the module does when it is imported
            raise UserError(f"{self.path}: {name}: {type(error).__name__}: {error}") from error
        if not callable(found):
            raise UserError(f"{self.path}: {name} is no function")
        return found  # type: ignore[no-any-return]  # whatever people name


def read_worker_file(path: Path, environment: Mapping[str, str] = os.environ) -> WorkerFile:
    """Raises UserError with file and line."""
    ini = _extended(path, environment, EXTENDS_MAX)
    for section, options in ini.sections.items():
        _known(ini, section, options)
    get = _Values(ini, environment)
    connection, chroot = _split(get.text("zookeeper", "connection", ""))
    urls = tuple(get.listed("queuey", "connection", "http://127.0.0.1:5000/v1/queuey/"))
    policy = get.policy("retry", Policy())
    store = get.text("store", "url", "")
    namespace = get.text(WORKER, "namespace", ROOT if store else chroot or ROOT).rstrip("/")
    if connection and not store:  # of a ZooKeeper that others use, too, nothing is touched but the namespace
        store, root = f"zookeeper://{connection}{namespace}?adopt=yes", ""
    else:
        store, root = store or "sqlite:///qdo-worker.sqlite", namespace
    wait_s = get.number(WORKER, "wait_interval", 30.0)
    usual = Pace()
    pace = Pace(
        page=int(get.number(WORKER, "page", usual.page, 1, 1_000)),
        commit_count=int(get.number(WORKER, "commit_count", usual.commit_count, 1, 1_000_000)),
        commit_s=get.number(WORKER, "commit_interval", usual.commit_s),
        idle_s=min(wait_s, 30.0),
        poll_s=min(wait_s, 5.0),
        settle_s=get.number(WORKER, "settle", get.number("zookeeper", "party_wait", usual.settle_s)),
        drain_s=get.number(WORKER, "drain", usual.drain_s),
    )
    found = WorkerFile(
        path,
        urls,
        get.text("queuey", "app_key", ""),
        get.text(WORKER, "app", urlsplit(urls[0]).path.strip("/").rpartition("/")[2]),
        root,
        _placed(path, store),
        job=get.text(WORKER, "job", ""),
        context=get.text(WORKER, "job_context", ""),
        failure=get.text(WORKER, "job_failure", ""),
        name=get.text(WORKER, "name", ""),
        policy=policy,
        queues=tuple(get.queue(section, policy) for section in ini.sections if section.startswith("queue ")),
        pace=pace,
        concurrency=int(get.number(WORKER, "concurrency", 100, 1, 10_000)),
        threads=int(get.number(WORKER, "threads", 100, 1, 1_000)),
        listen=get.text(WORKER, "listen", "127.0.0.1:0"),
        memory_max_mb=int(get.number(WORKER, "memory_max_mb", 0)),
        session_s=get.number(WORKER, "session_timeout", 15.0, 1, 3_600),
        ca_bundle=get.text(WORKER, "ca_bundle", ""),
    )
    patterns = () if found.job else tuple(pattern for pattern, _, _ in found.queues)
    automatic = get.text("partitions", "policy", "automatic" if connection else "manual") == "automatic"
    only = frozenset(get.lane(text) for text in get.listed("partitions", "ids", ""))
    return replace(found, choice=Choice(patterns, only, not automatic))


class _Values:
    """Conversions of the original: quotes, `${VAR}`, lists over several lines."""

    def __init__(self, ini: IniFile, environment: Mapping[str, str]) -> None:
        self._ini, self._environment = ini, environment

    def text(self, section: str, option: str, default: str) -> str:
        value = self._ini.sections.get(section, {}).get(option, "").strip()
        if len(value) > 1 and value[0] == value[-1] == '"':
            value = value[1:-1]
        return re.sub(r"\$\{(\w+)\}", lambda match: self._variable(section, option, match[1]), value) or default

    def _variable(self, section: str, option: str, name: str) -> str:
        if name not in self._environment:
            raise UserError(f"{self._ini.at(section, option)}: the environment variable {name} is not set")
        return self._environment[name]

    def listed(self, section: str, option: str, default: str) -> list[str]:
        return [part for part in re.split(r"[\s,]+", self.text(section, option, default)) if part]

    def number(self, section: str, option: str, default: float, low: float = 0, high: float = 1e9) -> float:
        text = self.text(section, option, "")
        try:
            value = float(text) if text else default
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            where = self._ini.at(section, option)
            raise UserError(f"{where}: {option} must be a number from {low:g} to {high:g}, not {text!r}")
        return value

    def lane(self, text: str) -> Lane:
        try:
            return parse_lane(text)
        except ValueError as error:
            raise UserError(f"{self._ini.at('partitions', 'ids')}: {error}") from error

    def policy(self, section: str, base: Policy) -> Policy:
        found: dict[str, Any] = {}  # numbers and truths
        for option, name in _RETRY.items():
            default = getattr(base, name)
            if isinstance(default, bool):
                found[name] = self.text(section, option, str(default)).lower() in ("true", "yes", "on", "1")
            else:
                found[name] = type(default)(self.number(section, option, default))
        try:
            return Policy(**found)
        except ValueError as error:
            raise UserError(f"{self._ini.at(section)}: {error}") from error

    def queue(self, section: str, base: Policy) -> tuple[str, str, Policy]:
        pattern = section.partition(" ")[2].strip("\"' ")
        if not pattern:
            raise UserError(f"{self._ini.at(section)}: [queue] needs a pattern, as in [queue orders-*]")
        return pattern, self.text(section, "job", ""), self.policy(section, base)


def _extended(path: Path, environment: Mapping[str, str], depth: int) -> IniFile:
    """With the options of the files it extends where it has none.  Raises UserError."""
    ini = read_ini(path, environment)
    sections = {name: dict(options) for name, options in ini.sections.items()}
    lines = dict(ini.lines)
    for name in sections.get("default", {}).get("extends", "").split():
        if depth == 0:
            raise UserError(f"{path}: files extend one another more than {EXTENDS_MAX} deep")
        base = _extended(path.parent / name, environment, depth - 1)
        for section, options in base.sections.items():
            sections[section] = {**options, **sections.get(section, {})}
        lines = {**base.lines, **lines}
    return IniFile(path, sections, lines)


def _known(ini: IniFile, section: str, options: Mapping[str, str]) -> None:
    """Raises UserError."""
    if section.startswith(IGNORED):
        return
    kind = "queue *" if section.startswith("queue ") else section
    if kind not in KNOWN:
        raise UserError(f"{ini.at(section)}: unknown section [{section}]{_near(section, KNOWN)}")
    for option in options:
        if option not in KNOWN[kind]:
            raise UserError(f"{ini.at(section, option)}: unknown option {option!r}{_near(option, KNOWN[kind])}")


def _near(word: str, known: Any) -> str:  # names, in whatever holds them
    close = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(known)}"


def _split(connection: str) -> tuple[str, str]:
    """Hosts, and the path behind them."""
    hosts, slash, path = connection.partition("/")
    return hosts, slash + path.rstrip("/")


def _placed(path: Path, url: str) -> str:
    """A relative SQLite file is relative to the settings file."""
    scheme, mark, file = url.partition("sqlite:///")
    return f"sqlite:///{(path.parent / file).absolute()}" if mark and not scheme else url
