"""The settings file: INI, with the sections and names of `zuul.conf` where they exist."""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from headgate.base.errors import UserError

SEARCHED = ("headgate.conf", "~/.config/headgate/headgate.conf", "/etc/headgate/headgate.conf")


class Option(NamedTuple):
    kind: str
    """text | path | number | seconds | choice:a,b"""
    default: str
    doc: str


OPTIONS: dict[str, dict[str, Option]] = {
    "scheduler": {
        "tenant_config": Option("path", "tenants.yaml", "The tenant file."),
        "state_dir": Option("path", "state", "Where everything is kept that no other option puts elsewhere."),
    },
    "store": {
        "url": Option("text", "", "`sqlite:///FILE`, or `memory:` to forget everything. Default: in state_dir."),
    },
    "keystore": {
        "password": Option("text", "", "Encrypts the private keys of projects. Without it no job can have secrets."),
    },
    "connection *": {
        "driver": Option("choice:git", "git", "The kind of the connection."),
        "baseurl": Option("text", "", "Where its repositories are: a directory, or an ssh or https URL."),
        "canonical_hostname": Option("text", "", "Host part of canonical project names. Default: the host of baseurl."),
        "poll_delay": Option("seconds", "30", "How often remote repositories are looked at; local ones are watched."),
    },
    "merger": {
        "git_dir": Option("path", "", "Bare copies of repositories. Default: in state_dir."),
        "jobs": Option("number", "8", "Pieces of git work at a time."),
    },
    "executor": {
        "job_dir": Option("path", "", "Work directories of builds. Default: in state_dir."),
        "log_dir": Option("path", "", "Logs of builds. Default: in state_dir."),
        "builds": Option("number", "", "Builds at a time. Default: twice the number of processors."),
        "sandbox": Option("choice:auto,bwrap,none", "auto", "Whether jobs run in bubblewrap; auto: where it works."),
        "log_size_max_mb": Option("number", "100", "What a job writes beyond this is discarded, and the log says so."),
        "default_timeout": Option("seconds", "10800", "For jobs that set no timeout."),
    },
    "web": {
        "listen_address": Option("text", "127.0.0.1", "Address to listen on."),
        "port": Option("number", "9000", "Port to listen on; 0 takes a free one."),
        "root": Option("text", "", "URL under which people reach the pages; used in reports."),
        "token": Option("text", "", "Needed to enqueue, dequeue or promote from another machine."),
    },
    "database": {
        "dburi": Option("text", "", "SQLAlchemy URL of the history. Default: an SQLite file in state_dir."),
    },
}


@dataclass(frozen=True, slots=True)
class Settings:
    """Checked values; `get` fills in defaults."""

    path: Path
    values: Mapping[str, Mapping[str, str]]
    connections: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def get(self, section: str, option: str) -> str:
        return self.values.get(section, {}).get(option) or OPTIONS[section][option].default

    def number(self, section: str, option: str, default: float = 0) -> float:
        value = self.get(section, option)
        return float(value) if value else default

    def place(self, section: str, option: str, default: str) -> Path:
        """A path, relative to the settings file; without a value `default` in state_dir."""
        value = self.get(section, option)
        if value:
            return self._absolute(value)
        return self.state_dir / default

    @property
    def state_dir(self) -> Path:
        return self._absolute(self.get("scheduler", "state_dir"))

    @property
    def tenant_config(self) -> Path:
        return self._absolute(self.get("scheduler", "tenant_config"))

    @property
    def store_url(self) -> str:
        """`memory:` or `sqlite:///<absolute path>`."""
        url = self.get("store", "url") or f"sqlite:///{self.state_dir / 'headgate.sqlite'}"
        if url == "memory:":
            return url
        if not url.startswith("sqlite:///"):
            raise UserError(f"{self.path}: [store] url: {url!r} is not known; it is sqlite:///FILE or memory:")
        return f"sqlite:///{self._absolute(url.removeprefix('sqlite:///'))}"

    @property
    def dburi(self) -> str:
        return self.get("database", "dburi") or f"sqlite:///{self.state_dir / 'history.sqlite'}"

    def _absolute(self, value: str) -> Path:
        return (self.path.parent / Path(value).expanduser()).absolute()


def find(given: str | None, environment: Mapping[str, str] = os.environ) -> Path:
    """The settings file: as given, as HEADGATE_CONFIG says, or the first that exists of SEARCHED."""
    named = given or environment.get("HEADGATE_CONFIG")
    if named:
        if not Path(named).is_file():
            raise UserError(f"{named}: there is no such settings file; `headgate init` writes an example")
        return Path(named)
    for candidate in SEARCHED:
        if (path := Path(candidate).expanduser()).is_file():
            return path
    raise UserError(
        "there is no settings file here.\n"
        "  headgate init             writes an example with comments into this directory\n"
        "  headgate run              starts Headgate with it"
    )


def read(path: Path) -> Settings:
    """Raises UserError with file and line, and the nearest known name."""
    parser = configparser.ConfigParser(interpolation=None)
    try:
        text = path.read_text()
        parser.read_string(text, str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    except configparser.Error as error:
        raise UserError(f"{path}: this is no settings file: {' '.join(str(error).split())}") from error
    values: dict[str, dict[str, str]] = {}
    connections: dict[str, dict[str, str]] = {}
    for section in parser.sections():
        known = "connection *" if section.startswith("connection ") else section
        if known not in OPTIONS:
            raise UserError(f"{path}:{_line(text, f'[{section}]')}: unknown section [{section}]{_near(known, OPTIONS)}")
        for name, value in parser[section].items():
            if name not in OPTIONS[known]:
                where = f"{path}:{_line(text, name, section)}"
                raise UserError(f"{where}: unknown option {name!r} in [{section}]{_near(name, OPTIONS[known])}")
            if why := _wrong(OPTIONS[known][name].kind, value):
                raise UserError(f"{path}:{_line(text, name, section)}: {name} {why}")
        found = dict(parser[section])
        if known == section:
            values[section] = found
        else:
            connections[section.removeprefix("connection ").strip("\"' ")] = found
    for name, found in connections.items():
        if not found.get("baseurl"):
            raise UserError(
                f"{path}: [connection {name}] needs a baseurl: the directory or URL its repositories are in"
            )
    return Settings(path.absolute(), values, connections)


def _wrong(kind: str, value: str) -> str:
    if kind.startswith("choice:") and value not in (words := kind.removeprefix("choice:").split(",")):
        return f"must be one of {', '.join(words)}, not {value!r}"
    if kind in ("number", "seconds"):
        try:
            return "" if float(value) >= 0 else f"must not be negative, as {value!r} is"
        except ValueError:
            return f"must be a number, not {value!r}"
    return ""


def _near(word: str, known: Mapping[str, object]) -> str:
    close = get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(known)}"


def _line(text: str, start: str, section: str = "") -> int:
    """1-based line that begins with `start`, after the heading of `section`."""
    inside = not section
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip().startswith(f"[{section}]"):
            inside = True
        elif inside and line.strip().lower().startswith(start.lower()):
            return number
    return 1


def reference() -> str:
    """The reference page."""
    lines = ["# Settings", "", "One INI file; relative paths are relative to it.", ""]
    for section, options in OPTIONS.items():
        lines += [f"## [{section.replace('*', 'NAME')}]", "", "| option | default | meaning |", "|---|---|---|"]
        lines += [f"| `{name}` | {f'`{o.default}`' if o.default else ''} | {o.doc} |" for name, o in options.items()]
        lines.append("")
    return "\n".join(lines)
