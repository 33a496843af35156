"""Read the settings file: an INI file that uses the section and option names of `zuul.conf` where they exist."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

from headgate.adapters.forges.registry import FORGES, without_effect
from headgate.adapters.nodes.clouds.registry import CLOUDS, settings_of
from headgate.adapters.reporters.registry import REPORTERS
from headgate.base.errors import NoSettings, UserError
from headgate.base.hints import similar, with_hint
from headgate.cli.inifile import IniFile, read_ini, with_new_names, wrong_url
from headgate.cli.options import FORMER, OPTIONS
from headgate.cli.reference import LACKING, NOTES, OptionNote, note
from headgate.cli.sections import Option
from headgate.config.budgets import Budgets
from headgate.store.registry import SQLITE, scheme_of, shapes

FLAGS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
NAME = "headgate.conf"
APP_DEFAULT = "queuey"
"""Application whose queues are served if the settings name none."""
SEARCHED = ("~/.config/headgate/headgate.conf", "/etc/headgate/headgate.conf")


OWN_NODE = "/headgate"
"""Headgate's node in ZooKeeper. Zuul's own tree, next to it, stays untouched."""


class Idle(NamedTuple):
    """Name an option of `zuul.conf` that has no effect in Headgate."""

    section: str
    option: str
    """Name of the option; empty for the entire section."""
    where: str
    note: OptionNote


@dataclass(frozen=True, slots=True)
class Settings:
    """Hold validated values; `get` supplies defaults."""

    path: Path
    values: Mapping[str, Mapping[str, str]]
    connections: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    authenticators: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    idle: tuple[Idle, ...] = ()
    """Options in the file that have no effect in Headgate."""
    warnings: tuple[str, ...] = ()
    """Changes that the file needs, although it still works."""

    def get(self, section: str, option: str) -> str:
        # An empty value counts as not set, so that `%(NAME)s` with an empty variable gives the default.
        return self.values.get(section, {}).get(option) or OPTIONS[section][option].default

    def number(self, section: str, option: str, default: float = 0) -> float:
        value = self.get(section, option)
        return float(value) if value else default

    def place(self, section: str, option: str, default: str) -> Path:
        """Return a path, relative to the settings file, or `default` in state_dir if the option has no value."""
        value = self.get(section, option)
        if value:
            return self._absolute(value)
        return self.state_dir / default

    @property
    def state_dir(self) -> Path:
        return self._absolute(self.get("scheduler", "state_dir"))

    @property
    def tenant_config(self) -> Path:
        """Return the path of the tenant file, or of the program that prints it."""
        script = self.tenant_config_script
        return script or self._absolute(self.get("scheduler", "tenant_config"))

    @property
    def tenant_config_script(self) -> Path | None:
        script = self.get("scheduler", "tenant_config_script")
        return self._absolute(script) if script else None

    @property
    def budgets(self) -> Budgets:
        """Return the limits on the size of configuration."""

        def most(option: str) -> int:
            return int(self.number("scheduler", option))

        return Budgets(
            file_max_bytes=most("config_file_max_bytes"),
            values_max=most("config_values_max"),
            jobs_max=most("item_jobs_max"),
            edges_max=most("item_dependencies_max"),
            semaphores_max=most("item_semaphores_max"),
            item_max_bytes=most("item_max_bytes"),
        )

    @property
    def store_url(self) -> str:
        """Return the URL of the store, with an absolute path for an SQLite file. Raise UserError for a URL of an
        unknown kind."""
        # A `zuul.conf` works unchanged: its [zookeeper] applies unless [store] overrides it.
        url = self.get("store", "url") or self._zookeeper() or f"sqlite:///{self.state_dir / 'headgate.sqlite'}"
        if (scheme := scheme_of(url)) is None:
            # URLs with `@` may contain a password, which must not get into a log.
            shown = url.partition("://")[0] + "://…" if "@" in url else url
            *others, last = shapes()
            known = f"{', '.join(others)} or {last}"
            raise UserError(f"{self.path}: [store] url: unknown kind of store {shown!r}; write it as {known}")
        return f"{SQLITE}{self._absolute(url.removeprefix(SQLITE))}" if scheme == SQLITE else url

    def _zookeeper(self) -> str:
        """Return the URL of the servers in [zookeeper], with Headgate's own node; empty if there are no servers."""
        hosts = self.get("zookeeper", "hosts")
        paths = {name: self.get("zookeeper", name) for name in ("tls_ca", "tls_cert", "tls_key")}
        files = {name: str(self._absolute(path)) for name, path in paths.items() if path}
        query = urlencode({**files, "adopt": "yes"})
        servers = hosts.replace(" ", "").rstrip("/")
        return f"zookeeper://{servers}{OWN_NODE}?{query}" if hosts else ""

    @property
    def session_timeout_s(self) -> float:
        """Return the seconds without contact after which a component counts as gone."""
        # The value belongs to the section that selects the store.
        in_store = self.get("store", "url") or not self.get("zookeeper", "session_timeout")
        return self.number("store" if in_store else "zookeeper", "session_timeout")

    @property
    def dburi(self) -> str:
        """Return the URL of the history database, with the path of an SQLite file made absolute."""
        uri = self.get("database", "dburi") or f"sqlite:///{self.state_dir / 'history.sqlite'}"
        scheme, slashes, file = uri.partition(":///")
        # An in-memory database or an SQLite URI has no path to resolve.
        if not scheme.startswith("sqlite") or not slashes or not file or file.startswith((":memory:", "file:")):
            return uri
        name, mark, query = file.partition("?")
        return f"{scheme}:///{self._absolute(name)}{mark}{query}"

    @property
    def messages_url(self) -> str:
        """Return the URL of the message database, with the path of an SQLite file made absolute."""
        url = self.get("messages", "url") or f"sqlite:///{self.state_dir / 'messages.sqlite'}"
        scheme, slashes, file = url.partition("sqlite:///")
        return f"sqlite:///{self._absolute(file)}" if slashes and not scheme else url

    @property
    def application_keys(self) -> dict[str, list[str]]:
        keys_of = self.values.get("application_keys", {})
        return {app: [word for word in keys.split() if not word.startswith(UNTIL)] for app, keys in keys_of.items()}

    @property
    def application_keys_until(self) -> dict[str, float]:
        """Return the Unix times at which keys expire, by key. Raise UserError for an invalid time, or for one that
        follows no key."""
        found = dict[str, float]()
        for app, keys in self.values.get("application_keys", {}).items():
            # An expiry time belongs to the key directly before it.
            for before, word in pairwise(["", *keys.split()]):
                if word.startswith(UNTIL):
                    found[before] = self._until(app, before, word.removeprefix(UNTIL))
        return found

    def _until(self, app: str, key: str, text: str) -> float:
        try:
            moment = datetime.fromisoformat(text)
            if not key or key.startswith(UNTIL) or moment.tzinfo is None:
                raise ValueError
        except ValueError:
            where = f"{self.path}: [application_keys] {app}"
            raise UserError(
                f"{where}: {UNTIL}{text}: write the expiry of a key with its time zone, after the key: "
                "KEY until=2026-12-31T00:00:00Z"
            ) from None
        return moment.timestamp()

    def _absolute(self, value: str) -> Path:
        return (self.path.parent / Path(value).expanduser()).absolute()


def find(given: str | None, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the settings file: the given one, that of HEADGATE_CONFIG, `headgate.conf` in the current
    directory or the nearest one above, or the first of SEARCHED that exists. Raise NoSettings if there is none."""
    if (path := _found(given, environment)) is None:
        raise NoSettings(
            "there is no settings file (headgate.conf) in this directory or in a directory above it.\n"
            "  headgate init     writes an example with comments into this directory; headgate run starts it\n"
            "  --config FILE     names one elsewhere, as does HEADGATE_CONFIG=FILE"
        )
    return path


def read_or_defaults(given: str | None, environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the file that `find` finds, or return the defaults. Raise UserError if a named file does not exist."""
    path = _found(given, environment)
    return read(path, environment) if path is not None else Settings(Path(NAME).absolute(), {})


def _found(given: str | None, environment: Mapping[str, str]) -> Path | None:
    named = given or environment.get("HEADGATE_CONFIG")
    if named:
        if not Path(named).exists():
            raise UserError(f"{named}: no such settings file; `headgate init` writes an example")
        return Path(named)
    above = (place / NAME for place in Path.cwd().parents)
    searched = (Path(NAME), *above, *(Path(candidate).expanduser() for candidate in SEARCHED))
    # Unlike Path.is_file, os.path.isfile returns False below a directory that this user may not read, such as /etc's.
    return next((path for path in searched if os.path.isfile(path)), None)


def read(path: Path, environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the file. Raise UserError that lists all errors with file, line and similar known names."""
    ini, warnings = with_new_names(read_ini(path, environment), FORMER)
    values: dict[str, dict[str, str]] = {}
    named: dict[str, dict[str, dict[str, str]]] = {"connection *": {}, "auth *": {}}
    idle: list[Idle] = []
    wrong: list[str] = []
    for section, options in ini.sections.items():
        kind = _kind(section)
        without = list(_idle(ini, section, kind, options))
        idle += without
        # An ignored section needs no checks.
        if not all(one.option for one in without):
            continue
        found = {name: value for name, value in options.items() if name not in [one.option for one in without]}
        wrong += _wrongs(ini, section, kind, found)
        if kind == section:
            values[section] = found
        else:
            # Names may be quoted: configparser cannot detect that `[connection a]` and `[connection "a"]` are the same.
            name = section.partition(" ")[2].strip("\"' ")
            if name in named[kind]:
                wrong.append(f"{ini.at(section)}: there are two sections [{section}]; merge them")
            # Drivers of forges read options of Zuul that `found` lacks.
            named[kind][name] = dict(options) if options.get("driver") in FORGES else found
    if wrong:
        raise UserError("\n".join(wrong[:WRONG_MAX]))
    return Settings(path.absolute(), values, named["connection *"], named["auth *"], tuple(idle), warnings)


def _idle(ini: IniFile, section: str, kind: str, options: Mapping[str, str]) -> Iterator[Idle]:
    """Yield the options of a section that only Zuul has and that have no effect in Headgate. An empty option
    means the entire section."""
    driver = options.get("driver") or "git" * (kind == "connection *")
    if kind not in OPTIONS and kind in NOTES:
        yield Idle(section, "", ini.at(section), NOTES[kind]["*"])
    elif kind in OPTIONS and "*" not in OPTIONS[kind]:
        known = _options(kind, driver)
        for name in options:
            if name not in known and (found := note(kind, name, driver)) is not None:
                yield Idle(section, name, ini.at(section, name), found)


def _options(kind: str, driver: str) -> Collection[str]:
    """Return the names of options that have an effect. Drivers of forges and reporters have their own options; with an
    unsupported driver, no option has an effect."""
    if kind == "connection *" and _lacking(driver):
        return {"driver"}
    if kind == "connection *" and driver in FORGES:
        return {*SHARED, *FORGES[driver].settings} - without_effect(driver).keys()
    if kind == "connection *" and driver in REPORTERS:
        return {"driver", *REPORTERS[driver].settings}
    return OPTIONS[kind]


def _lacking(driver: str) -> bool:
    """Return whether Zuul has the driver but Headgate does not."""
    return driver in LACKING and driver not in FORGES and driver not in CLOUDS


def _kind(section: str) -> str:
    """Return the section's key in OPTIONS, such as `auth *` for `auth NAME`."""
    word = section.partition(" ")[0]
    return f"{word} *" if section != word and {f"{word} *"} & {*OPTIONS, *NOTES} else section


SHARED = ("driver", "canonical_hostname", "baseurl", "poll_delay", "approvals")
"""Options of plain git that connections to any forge may have."""
POKE_SECRET_MIN_CHARS = 16
WRONG_MAX = 30
"""Limit on the number of errors in one message."""
UNTIL = "until="
"""Prefix of the expiry time that may follow a key."""
_REMARK = re.compile(r"\s[#;]")
"""Matches a value that probably ends with an intended comment."""
_ANY = Option("text", "", "")
"""Option for any name in a section that accepts all names."""
_NEEDED = {
    "git": ("baseurl", "the directory or URL of its repositories"),
    "queue": ("url", "the URL to post messages to, such as http://HOST:5000/v1/APP/"),
    "inventory": ("project", "the project whose objects it watches; it also needs a partition"),
}
"""Driver of a connection -> the option without a default that it needs, and its meaning."""


def _wrongs(ini: IniFile, section: str, kind: str, found: Mapping[str, str]) -> Iterator[str]:
    """Yield the errors in a section, each with its file and line."""
    if section == "DEFAULT":
        yield f"{ini.at(section)}: [DEFAULT] is not supported: move its options to the sections that they belong to"
        return
    if kind not in OPTIONS:
        yield with_hint(f"{ini.at(section)}: unknown section [{section}]", _similar_section(section))
        return
    driver = found.get("driver", "") if kind == "connection *" else ""
    known: Mapping[str, object] = OPTIONS[kind]
    if driver in CLOUDS:
        known = {"driver": None, **settings_of(driver)}
    elif driver in REPORTERS:
        known = {"driver": None, **REPORTERS[driver].settings}
    for name, value in found.items():
        if name not in known and "*" not in known:
            yield with_hint(f"{ini.at(section, name)}: unknown option {name!r} in [{section}]", similar(name, known))
            continue
        if name == "driver" and kind == "connection *" and _lacking(value):
            continue
        if value and (why := _wrong(OPTIONS[kind].get(name, _ANY).kind, value)):
            hint = "; put a comment on its own line" if _REMARK.search(value) else ""
            yield f"{ini.at(section, name)}: {name} {why}{hint}"
    if kind == "connection *":
        yield from _lacks(ini, section, found)


def _lacks(ini: IniFile, section: str, found: Mapping[str, str]) -> Iterator[str]:
    """Yield an error for each option that a connection needs but lacks, and for a `webhook_token` that is too short."""
    driver = found.get("driver") or "git"
    if _lacking(driver):
        return
    row = FORGES.get(driver) or CLOUDS.get(driver) or REPORTERS.get(driver)
    needed, what = row.needed if row is not None else _NEEDED.get(driver, ("", ""))
    # If this installation serves queues itself, their URL is known.
    own = driver == "queue" and not {"messages", "application_keys"}.isdisjoint(ini.sections)
    if driver == "inventory" and found.get("project") and not found.get("partition"):
        needed, what = "partition", "the partition whose objects it watches"
    # With a recorded poke, an attacker could brute-force a short secret offline.
    if driver == "git" and 0 < len(found.get("webhook_token", "")) < POKE_SECRET_MIN_CHARS:
        yield (
            f"{ini.at(section, 'webhook_token')}: webhook_token needs at least {POKE_SECRET_MIN_CHARS} characters: "
            "`openssl rand -hex 32` makes one"
        )
    if needed and not found.get(needed) and not own:
        yield f"{ini.at(section)}: [{section}] needs {'an' if needed[0] in 'aeio' else 'a'} {needed}: {what}"


def _similar_section(section: str) -> str:
    """Return the hint for an unknown section."""
    if f"{section} *" in OPTIONS:
        return f"it needs a name, as in [{section} local]"
    return similar(section, [name.removesuffix(" *") for name in OPTIONS])


def _wrong(kind: str, value: str) -> str:
    """Return why the value is not valid for this kind, or an empty string if it is."""
    kind, _, limits = kind.partition(":")
    if kind == "choice" and value not in (words := limits.split(",")):
        return f"must be one of {', '.join(words)}, not {value!r}"
    if kind == "flag" and value.lower() not in FLAGS:
        return f"must be true or false, not {value!r}"
    if kind in ("number", "seconds"):
        try:
            number = float(value)
        except ValueError:
            return f"must be a number, not {value!r}"
        # `float` also accepts `inf` and `nan`, which make no sense as timeouts or limits.
        return "" if number >= 0 and math.isfinite(number) else f"must be a number of at least 0, not {value!r}"
    if kind == "integer":
        # `number` reads every value as a float, which is exact up to 2 ** 53.
        least, most = (int(limit) for limit in limits.split(",")) if limits else (0, 1 << 53)
        if not re.fullmatch(r"[+-]?[0-9]+", value):
            return f"must be a whole number, not {value!r}"
        return "" if least <= int(value) <= most else f"must be from {least} to {most}, not {value!r}"
    return wrong_url(value)


def reference() -> str:
    """Return the text of the reference page about settings."""
    lines = [
        "# Settings",
        "",
        "The settings are one INI file. Relative paths are relative to its directory. In values, `%(NAME)s` inserts an",
        "environment variable whose name begins with `ZUUL_` or `HEADGATE_`, and `%%` stands for a percent sign.",
        "Times are in seconds, unless the name of the option says otherwise.",
        "",
    ]
    for section, options in OPTIONS.items():
        lines += [f"## [{section.replace('*', 'NAME')}]", "", "| option | default | meaning |", "|---|---|---|"]
        lines += [f"| `{name}` | {f'`{o.default}`' if o.default else ''} | {o.doc} |" for name, o in options.items()]
        lines.append("")
    return "\n".join(lines)
