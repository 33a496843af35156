"""The settings file: INI, with the sections and names of `zuul.conf` where they exist."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from headgate.base.errors import UserError
from headgate.cli.inifile import IniFile, read_ini

FLAGS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
NAME = "headgate.conf"
SEARCHED = ("~/.config/headgate/headgate.conf", "/etc/headgate/headgate.conf")


class Option(NamedTuple):
    kind: str
    """text | path | number | seconds | integer | integer:least,most | flag | choice:a,b"""
    default: str
    doc: str


OPTIONS: dict[str, dict[str, Option]] = {
    "scheduler": {
        "tenant_config": Option("path", "tenants.yaml", "The tenant file."),
        "tenant_config_script": Option("path", "", "A program that prints the tenant file; it takes the file's place."),
        "state_dir": Option("path", "state", "Where everything is kept that no other option puts elsewhere."),
        "prometheus_port": Option("integer:0,65535", "", "Port of health and figures, 0: a free one. Default: none."),
        "prometheus_addr": Option("text", "127.0.0.1", "Address of that port."),
    },
    "store": {
        "url": Option(
            "text",
            "",
            "`sqlite:///FILE`, `zookeeper://HOST:PORT,…/CHROOT`, `etcd://HOST:PORT,…/PREFIX`, or `memory:` to forget "
            "all. Default: in state_dir.",
        ),
        "session_timeout": Option(
            "seconds", "15", "After how long without a sign of life a component's work is taken over."
        ),
    },
    "keystore": {
        "password": Option("text", "", "Encrypts the private keys of projects. Without it no job can have secrets."),
    },
    "connection *": {
        "driver": Option(
            "choice:git,queue", "git", "The kind of the connection; queue: reports are posted to queues of messages."
        ),
        "baseurl": Option("text", "", "git: where its repositories are: a directory, or an ssh or https URL."),
        "canonical_hostname": Option("text", "", "Host part of canonical project names. Default: the host of baseurl."),
        "poll_delay": Option("seconds", "30", "How often remote repositories are looked at; local ones are watched."),
        "url": Option("text", "", "queue: where messages are posted, as `http://HOST:5000/v1/APP/`."),
        "app_key": Option("text", "", "queue: a key of that application."),
        "partitions": Option("integer:1,200", "8", "queue: of queues that are made; a project is always in one."),
    },
    "merger": {
        "git_dir": Option("path", "", "Bare copies of repositories. Default: in state_dir."),
        "jobs": Option("integer:1,1000", "8", "Pieces of git work at a time."),
        "git_user_name": Option("text", "Headgate", "Author and committer of merge commits; everywhere the same."),
        "git_user_email": Option("text", "headgate@localhost", "Their address."),
        "prometheus_port": Option("integer:0,65535", "", "Port of health and figures, 0: a free one. Default: none."),
        "prometheus_addr": Option("text", "127.0.0.1", "Address of that port."),
    },
    "launcher": {
        "host_keys": Option(
            "choice:learn,require",
            "learn",
            "Of machines without the property `host-key`. learn: the key seen first is recorded there, and they are "
            "held to it. require: they are not used.",
        ),
        "prometheus_port": Option("integer:0,65535", "", "Port of health and figures, 0: a free one. Default: none."),
        "prometheus_addr": Option("text", "127.0.0.1", "Address of that port."),
    },
    "executor": {
        "job_dir": Option("path", "", "Work directories of builds. Default: in state_dir."),
        "log_dir": Option("path", "", "Logs of builds. Default: in state_dir."),
        "builds": Option("integer:1,10000", "", "Builds at a time. Default: twice the number of processors."),
        "hostname": Option("text", "", "Name under which other processes reach this one. Default: of the machine."),
        "zone": Option("text", "", "Zone of this executor: it runs builds that need the labels of its machines."),
        "allow_unzoned": Option("flag", "false", "Whether an executor of a zone runs builds of no zone, too."),
        "load_multiplier": Option(
            "number",
            "",
            "Load average per processor beyond which no build is begun. Default: 2.5; no limit with `headgate run`, "
            "as nobody else could take it.",
        ),
        "min_avail_mem": Option("number", "5.0", "Per cent of memory that must be free for another build."),
        "min_avail_hdd": Option("number", "5.0", "Per cent of the disk of builds that must be free for another."),
        "sigterm_method": Option(
            "choice:stop,graceful", "stop", "On SIGTERM builds are handed back to be run elsewhere (stop), or finished."
        ),
        "prometheus_port": Option("integer:0,65535", "", "Port of health, figures and logs. Default: a free one."),
        "prometheus_addr": Option("text", "127.0.0.1", "Address of that port."),
        "sandbox": Option("choice:auto,bwrap,none", "auto", "Whether jobs run in bubblewrap; auto: where it works."),
        "sandbox_network": Option("flag", "yes", "Whether jobs in bubblewrap have the network."),
        "trusted_ro_paths": Option("text", "", "Paths, with `:` between, that jobs of config-projects may read, too."),
        "trusted_rw_paths": Option("text", "", "Paths that jobs of config-projects may write, too."),
        "untrusted_ro_paths": Option("text", "", "Paths that jobs of other projects may read, too."),
        "untrusted_rw_paths": Option("text", "", "Paths that jobs of other projects may write, too."),
        "variables": Option("path", "", "YAML file of variables for all jobs; they win over those of jobs."),
        "nodes": Option(
            "path", "", "YAML file of machines: name, labels, variables of Ansible. Default: this machine."
        ),
        "memory_max_mb": Option("integer:1,1000000000", "", "Address space of each process of a job."),
        "processes_max": Option("integer:1,1000000000", "", "Processes of this user, counted when a job starts one."),
        "open_files_max": Option("integer:1,1000000000", "", "Open files of each process of a job."),
        "file_size_max_mb": Option("integer:1,1000000000", "", "Size of each file that a job writes."),
        "log_size_max_mb": Option("number", "100", "What a job writes beyond this is discarded, and the log says so."),
        "files_size_max_mb": Option(
            "number", "1000", "What a job leaves in its log directory beyond this is not kept."
        ),
        "default_timeout": Option("seconds", "10800", "For jobs that set no timeout."),
    },
    "web": {
        "listen_address": Option("text", "127.0.0.1", "Address to listen on."),
        "port": Option("integer:0,65535", "9000", "Port to listen on; 0 takes a free one."),
        "root": Option("text", "", "URL under which people reach the pages; used in reports."),
        "token": Option(
            "text", "", "Whoever has it may do everything. Without it and `[auth NAME]`, programs of this machine may."
        ),
        "prometheus_port": Option("integer:0,65535", "", "Port of health and figures, beside the one of the pages."),
        "prometheus_addr": Option("text", "127.0.0.1", "Address of that port."),
    },
    "inventory": {
        "prefix": Option("text", "/", "What is before `runm/metadata` in the store."),
        "listen_address": Option("text", "127.0.0.1", "Address of the gRPC service."),
        "port": Option("integer:0,65535", "10002", "Its port; 0 takes a free one."),
        "http_port": Option("integer:0,65535", "", "Port of the same as JSON over HTTP. Default: not served."),
        "identity": Option(
            "choice:verify,trust",
            "",
            "verify: tokens of an `[auth NAME]`, or client certificates. trust: whoever callers say they are. "
            "Default: verify if there is something to verify with, trust on a loopback address.",
        ),
        "cert_path": Option("path", "", "Certificate of the service, gRPC and HTTP, PEM. Default: no TLS."),
        "key_path": Option("path", "", "Its key."),
        "client_ca_path": Option("path", "", "Callers need a certificate of this authority. Default: they need none."),
        "service_name": Option("text", "runmachine-metadata", "Under which it is found in etcd."),
    },
    "auth *": {
        "driver": Option("choice:HS256,RS256,RS256withJWKS", "HS256", "How tokens are signed."),
        "issuer_id": Option("text", "", "The `iss` of the tokens this authenticator is for. Needed."),
        "client_id": Option("text", "", "Their `aud`. Needed."),
        "secret": Option("text", "", "HS256: what they are signed with, at least 32 bytes."),
        "public_key": Option("path", "", "RS256: file with the public key, PEM."),
        "keys_url": Option("text", "", "RS256withJWKS: file (or file:// URL) with a JSON web key set."),
        "realm": Option("text", "", "Said to who is refused. Default: client_id."),
        "default": Option("flag", "false", "The one whose realm is said to who brings no token."),
        "uid_claim": Option("text", "sub", "The claim that names the person."),
        "max_validity_time": Option("seconds", "", "Tokens must not be older than this. Default: as they say."),
        "skew": Option("seconds", "0", "How far clocks may differ."),
        "allow_authz_override": Option(
            "flag", "false", "Whether a claim `zuul.admin: [tenants]` makes its bearer an administrator there."
        ),
    },
    "notices": {
        "url": Option("text", "", "Where what happens is posted, as `http://HOST:5000/v1/APP/`. Default: nowhere."),
        "app_key": Option("text", "", "A key of that application."),
        "partitions": Option("integer:1,200", "8", "Of the queues, one of each tenant; a project is always in one."),
        "waiting_max": Option(
            "integer:1,1000000",
            "10000",
            "While a message server is away, so many turns of pipelines wait to be told to it; the same for each "
            "connection that is a queue. What is not told then, is logged, and counted in `headgate_messages_untold`.",
        ),
    },
    "messages": {
        "url": Option("text", "", "`sqlite:///FILE` or `postgresql://…`. Default: an SQLite file in state_dir."),
        "listen_address": Option("text", "127.0.0.1", "Address `headgate queue serve` listens on."),
        "port": Option("integer:0,65535", "5000", "Its port; 0 takes a free one."),
    },
    "application_keys": {
        "*": Option("text", "", "Application = its keys, one a line: who may use its queues of messages."),
    },
    "log": {
        "format": Option("choice:text,json", "text", "Of the log on standard error; json: an object a line."),
        "level": Option("choice:debug,info,warning,error", "info", "What is less important is not logged."),
    },
    "tracing": {
        "enabled": Option("flag", "false", "Whether traces are sent. Needs `pip install 'headgate[tracing]'`."),
        "endpoint": Option("text", "http://127.0.0.1:4318/v1/traces", "Where OTLP over HTTP is taken."),
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
    authenticators: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

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
        """The tenant file, or the program that prints it."""
        script = self.tenant_config_script
        return script or self._absolute(self.get("scheduler", "tenant_config"))

    @property
    def tenant_config_script(self) -> Path | None:
        script = self.get("scheduler", "tenant_config_script")
        return self._absolute(script) if script else None

    @property
    def store_url(self) -> str:
        """`memory:`, `sqlite:///<absolute path>`, `zookeeper://…` or `etcd://…`."""
        url = self.get("store", "url") or f"sqlite:///{self.state_dir / 'headgate.sqlite'}"
        if url == "memory:" or url.startswith(("zookeeper://", "etcd://")):
            return url
        if not url.startswith("sqlite:///"):
            shown = url.partition("://")[0] + "://…" if "@" in url else url
            known = "sqlite:///FILE, zookeeper://HOST:PORT,…/CHROOT, etcd://HOST:PORT,…/PREFIX or memory:"
            raise UserError(f"{self.path}: [store] url: {shown!r} is not known; it is {known}")
        return f"sqlite:///{self._absolute(url.removeprefix('sqlite:///'))}"

    @property
    def dburi(self) -> str:
        """A relative SQLite file is relative to the settings file."""
        uri = self.get("database", "dburi") or f"sqlite:///{self.state_dir / 'history.sqlite'}"
        scheme, slashes, file = uri.partition(":///")
        if not scheme.startswith("sqlite") or not slashes or not file or file.startswith((":memory:", "file:")):
            return uri
        name, mark, query = file.partition("?")
        return f"{scheme}:///{self._absolute(name)}{mark}{query}"

    @property
    def messages_url(self) -> str:
        """`sqlite:///<absolute path>` or as it stands."""
        url = self.get("messages", "url") or f"sqlite:///{self.state_dir / 'messages.sqlite'}"
        scheme, slashes, file = url.partition("sqlite:///")
        return f"sqlite:///{self._absolute(file)}" if slashes and not scheme else url

    @property
    def application_keys(self) -> dict[str, list[str]]:
        return {app: keys.split() for app, keys in self.values.get("application_keys", {}).items()}

    def _absolute(self, value: str) -> Path:
        return (self.path.parent / Path(value).expanduser()).absolute()


def find(given: str | None, environment: Mapping[str, str] = os.environ) -> Path:
    """The settings file: as given, as HEADGATE_CONFIG says, `headgate.conf` here or in the nearest directory above, or
    the first that exists of SEARCHED."""
    named = given or environment.get("HEADGATE_CONFIG")
    if named:
        if not Path(named).is_file():
            raise UserError(f"{named}: there is no such settings file; `headgate init` writes an example")
        return Path(named)
    above = (place / NAME for place in Path.cwd().parents)
    for path in (Path(NAME), *above, *(Path(candidate).expanduser() for candidate in SEARCHED)):
        if path.is_file():
            return path
    raise UserError(
        "there is no settings file here, nor in a directory above.\n"
        "  headgate init             writes an example with comments into this directory\n"
        "  headgate run              starts Headgate with it"
    )


def read(path: Path, environment: Mapping[str, str] = os.environ) -> Settings:
    """Raises UserError with file and line, and the nearest known name."""
    ini = read_ini(path, environment)
    values: dict[str, dict[str, str]] = {}
    named: dict[str, dict[str, dict[str, str]]] = {"connection *": {}, "auth *": {}}
    for section, found in ini.sections.items():
        kind = _kind(section)
        _check(ini, section, kind, found)
        if kind == section:
            values[section] = dict(found)
        else:
            name = section.partition(" ")[2].strip("\"' ")
            if name in named[kind]:
                raise UserError(f"{ini.at(section)}: there are two sections [{section}]")
            named[kind][name] = dict(found)
    return Settings(path.absolute(), values, named["connection *"], named["auth *"])


def _kind(section: str) -> str:
    """The section of OPTIONS that says what may stand in this one."""
    word = section.partition(" ")[0]
    return f"{word} *" if f"{word} *" in OPTIONS and section != word else section


_ANY = Option("text", "", "")
"""What stands in a section that takes any names."""
_NEEDED = {
    "git": ("baseurl", "the directory or URL its repositories are in"),
    "queue": ("url", "where messages are posted, as http://HOST:5000/v1/APP/"),
}
"""Driver of a connection -> what has no default, and what it is."""


def _check(ini: IniFile, section: str, kind: str, found: Mapping[str, str]) -> None:
    """Raises UserError."""
    if section == "DEFAULT":
        raise UserError(f"{ini.at(section)}: [DEFAULT] is not used here: write each option into its own section")
    if kind not in OPTIONS:
        raise UserError(f"{ini.at(section)}: unknown section [{section}]{_near_section(section)}")
    for name, value in found.items():
        if name not in OPTIONS[kind] and "*" not in OPTIONS[kind]:
            raise UserError(
                f"{ini.at(section, name)}: unknown option {name!r} in [{section}]{_near(name, OPTIONS[kind])}"
            )
        if value and (why := _wrong(OPTIONS[kind].get(name, _ANY).kind, value)):
            raise UserError(f"{ini.at(section, name)}: {name} {why}")
    if kind == "connection *":
        needed, what = _NEEDED[found.get("driver") or "git"]
        if not found.get(needed):
            raise UserError(f"{ini.at(section)}: [{section}] needs a {needed}: {what}")


def _near_section(section: str) -> str:
    if f"{section} *" in OPTIONS:
        return f"; it needs a name, as in [{section} local]"
    return _near(section, {name.removesuffix(" *"): None for name in OPTIONS})


def _wrong(kind: str, value: str) -> str:
    """Why the value cannot stand; empty when it can."""
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
        return "" if number >= 0 and math.isfinite(number) else f"must be a number of at least 0, not {value!r}"
    if kind == "integer":
        least, most = (int(limit) for limit in limits.split(",")) if limits else (0, 1 << 53)
        if not re.fullmatch(r"[+-]?[0-9]+", value):
            return f"must be a whole number, not {value!r}"
        return "" if least <= int(value) <= most else f"must be from {least} to {most}, not {value!r}"
    return ""


def _near(word: str, known: Mapping[str, object]) -> str:
    close = get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(known)}"


def reference() -> str:
    """The reference page."""
    lines = [
        "# Settings",
        "",
        "One INI file; relative paths are relative to it. In values, `%(NAME)s` stands for an environment variable",
        "whose name begins with `ZUUL_` or `HEADGATE_`, and `%%` for a per cent sign.",
        "",
    ]
    for section, options in OPTIONS.items():
        lines += [f"## [{section.replace('*', 'NAME')}]", "", "| option | default | meaning |", "|---|---|---|"]
        lines += [f"| `{name}` | {f'`{o.default}`' if o.default else ''} | {o.doc} |" for name, o in options.items()]
        lines.append("")
    return "\n".join(lines)
