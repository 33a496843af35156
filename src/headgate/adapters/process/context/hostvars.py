"""Give playbooks the variables of the job, and the facts of earlier playbooks, according to their rights.

In Ansible, a variable may be a template, which runs programs, reads files and uses other variables.  A playbook that is
trusted or has secrets gets the values of a job's variables as plain strings, evaluated without any rights, and none
that tells Ansible which programs to start.

Ansible keeps facts in a directory of JSON files (`fact_caching = jsonfile`), and each playbook has its own: the facts
with which it ends are parsed here, strictly, and the next playbook begins with them.  A fact overrides the inventory,
and some facts tell Ansible what to run.  So a playbook accepts a fact as a fact only from playbooks that have all of
its own rights; facts of others become variables of the inventory, below those of the job and under the same rules:
plain strings without meaning for Ansible.  A fact with a secret goes only to playbooks with that secret, and facts of
this machine, where each context has its own home, stay in their context.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import yaml

from headgate.adapters.keys.clear import Censor
from headgate.adapters.process.context.places import PlaybookContext
from headgate.adapters.work.directory import Directory, Strange, shown
from headgate.config.keys.job import RESERVED_VARS
from headgate.gate.state.works import BuildSpec

LOCALHOST = "localhost"
EVALUATED_SIZE_MAX_BYTES = 2_000_000
OWN_VARIABLE = "headgate_values"
"""Variable with the names of the variables to evaluate, and the files for the values."""
RAW_VARIABLE = "unsafe_vars"
"""Variable with all variables of the job. A playbook with more rights than the job's author gets unevaluated values
only here: if it evaluated a template, even to print a host's variables, it would run the author's program."""
HARMLESS = frozenset(
    (
        "ansible_shell_type",
        "ansible_winrm_operation_timeout_sec",
        "ansible_winrm_read_timeout_sec",
        "ansible_winrm_scheme",
        "ansible_winrm_server_cert_validation",
        "ansible_winrm_transport",
    )
)
"""Variables of Ansible itself that are safe to set: they name no program, file or argument of a program."""
_VARIABLE_PREFIX = "ansible_"
_TEXT = "tag:yaml.org,2002:str"
HOSTS_MAX = 500
SIZE_MAX_BYTES = 1_000_000
"""Size of the facts of one host."""
TOTAL_SIZE_MAX_BYTES = 8_000_000
"""Size of all facts at the end of one playbook."""
DEPTH_MAX = 100
"""Nesting depth of lists and mappings; each level costs several calls when a variable is written."""
NAME_SIZE_MAX_BYTES = 200
"""Size of a host's name."""
_TOO_LARGE = f"they are more than {SIZE_MAX_BYTES // 1_000} kB, or {TOTAL_SIZE_MAX_BYTES // 1_000} kB with all others"
_PAYLOAD = "__payload__"
"""Key under which Ansible 2.19 and newer store the facts, as JSON text."""
_FILE_PREFIX = re.compile(r"s[0-9]{1,9}_")
"""Prefix of the names of files with a payload."""
_TAGGED, _UNSAFE = "__ansible_type", "__ansible_unsafe"
_GONE = object()
_FACT_PREFIXES = ("ansible_", "_", "discovered_interpreter_", "module_setup", "gather_subset")

Values = Mapping[str, Mapping[str, Any]]
"""Host -> variable -> value. JSON."""


class LiteralText(str):
    """Represent text that Ansible uses literally, even if it looks like a template."""


def literal(value: Any) -> Any:  # JSON
    """Return the value with every string, even in names, marked as literal."""
    if isinstance(value, dict):
        return {LiteralText(key): literal(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [literal(inner) for inner in value]
    return LiteralText(value) if isinstance(value, str) else value


class _Dumper(yaml.CSafeDumper):
    def text(self, value: LiteralText) -> yaml.ScalarNode:
        """Represent a string as `!unsafe`. Ansible 2.19 converts an `!unsafe` string that looks like a number, a date
        or a boolean: such strings, which are not templates, are only quoted."""
        kinds = self.yaml_implicit_resolvers.get(value[:1], ())
        plain = any(pattern.match(value) for _, pattern in kinds)
        return self.represent_scalar(_TEXT if plain else "!unsafe", str(value), style='"')

    def ignore_aliases(self, _: Any) -> bool:
        return True


_Dumper.add_representer(LiteralText, _Dumper.text)


def for_ansible(value: Mapping[str, Any]) -> bytes:
    """Return a file of variables, or an inventory; a `LiteralText` is not a template."""
    found: bytes = yaml.dump(dict(value), Dumper=_Dumper, allow_unicode=True, encoding="utf-8")
    return found


@dataclass(frozen=True, slots=True)
class JobVariables:
    """Hold the variables of one job, of its variable files and of the jobs before it."""

    spec: BuildSpec
    included: Mapping[str, Any]
    """Variables of included files. JSON."""

    @property
    def everywhere(self) -> dict[str, Any]:
        job = self.spec.job
        return {**self.spec.parent_data, **self.included, **job.vars, **job.group_vars.get("all", {})}

    def on(self, host: str) -> dict[str, Any]:
        """Return the value with the highest precedence of each variable."""
        job, found = self.spec.job, self.everywhere
        for group in sorted(job.nodeset.groups, key=lambda group: group.name):
            if host in group.nodes:
                found |= job.group_vars.get(group.name, {})
        return {**found, **job.host_vars.get(host, {}), **job.extra_vars}

    def harmless(self, hosts: Iterable[str]) -> Values:
        """Return the job's variables, unevaluated, that a playbook with more rights may have."""
        places = dict.fromkeys((*hosts, LOCALHOST))
        return {host: {name: v for name, v in self.on(host).items() if is_permitted(name, v)} for host in places}


def is_permitted(name: str, value: Any) -> bool:
    """Return whether a playbook with more rights may get a variable of a job."""
    # ansible_python_interpreter, ansible_ssh_common_args and many more name programs to start: only a list of harmless
    # ones is safe, as each version adds others.
    if name.startswith(_VARIABLE_PREFIX):
        return name in HARMLESS and not templates(value)
    return name not in RESERVED_VARS


def plain(values: Values) -> Values:
    """Return the variables except those that Ansible itself reads."""
    return {
        host: {name: value for name, value in variables.items() if not name.startswith(_VARIABLE_PREFIX)}
        for host, variables in values.items()
    }


def templates(value: Any) -> bool:  # JSON
    """Return whether Ansible would evaluate anything in the value."""
    if isinstance(value, Mapping):
        return any(templates(key) or templates(inner) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return any(map(templates, value))
    return isinstance(value, str) and any(mark in value for mark in ("{{", "{%", "{#"))


def evaluation_arguments(wanted: Values, place: str, elsewhere: Iterable[str] = ()) -> dict[str, Any]:
    """Return the arguments of the action `headgate_values`, which writes one file for each host, and gathers the facts
    of hosts in `elsewhere` whose variables use facts. JSON."""
    variables = plain(wanted)
    return {
        "names": {host: sorted(names) for host, names in variables.items()},
        "files": {host: f"{place}/values-{n}" for n, host in enumerate(wanted)},
        "facts": [host for host in elsewhere if _names_facts(variables.get(host))],
    }


def _names_facts(value: Any) -> bool:  # JSON
    """Return whether the value contains a template that uses a fact of a host."""
    if isinstance(value, Mapping):
        return any(_names_facts(key) or _names_facts(inner) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return any(map(_names_facts, value))
    return templates(value) and _VARIABLE_PREFIX in value


def evaluated(text: bytes, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the `wanted` variables, from the file of `headgate_values` for one host. Raise
    ValueError."""
    try:
        found = msgspec.json.decode(text, type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the result cannot be read: {error}") from error
    # These were not evaluated: is_permitted accepts only those without templates.
    own = {name: value for name, value in wanted.items() if name.startswith(_VARIABLE_PREFIX)}
    # Accept only the wanted names: a job's templates ran where the file was written, and may have added others.
    return own | {name: found[name] for name in wanted if name in found}


@dataclass(frozen=True, slots=True)
class _Fact:
    """Represent a fact that a playbook changed."""

    by: PlaybookContext
    host: str
    name: str
    value: Any
    """JSON; _GONE if the playbook removed the fact."""
    secret: bool
    """Whether the fact contains one of the playbook's secrets."""

    def allowed_in(self, context: PlaybookContext) -> bool:
        return not self.secret or self.by.secrets <= context.secrets


@dataclass(slots=True)
class FactCache:
    """Keep the facts of one build in the order in which they were set."""

    here: Collection[str] = ()
    """Names of hosts that are this machine."""
    _left: list[_Fact] = field(default_factory=list)
    _forms: dict[PlaybookContext, tuple[str, bool]] = field(default_factory=dict)
    """Context -> Ansible's format of its facts: prefix of file names, and whether facts are a payload."""

    def known(self, context: PlaybookContext) -> dict[str, dict[str, Any]]:
        """Return the facts with which a playbook of this context begins, by host. JSON."""
        # This is the rule of this module: accept facts only from playbooks with all rights of the reader.
        covered = (fact for fact in self._left if fact.allowed_in(context) and fact.by.covers(context))
        return _folded(fact for fact in covered if fact.by == context or not self._of_here(fact))

    def _of_here(self, fact: _Fact) -> bool:
        return fact.host in self.here and fact.name.startswith(_FACT_PREFIXES)

    def from_fewer_rights(self, context: PlaybookContext) -> dict[str, dict[str, Any]]:
        """Return the facts from playbooks with fewer rights than this context, by host, for use as variables. JSON."""
        others = (fact for fact in self._left if fact.allowed_in(context) and not fact.by.covers(context))
        return _folded(fact for fact in others if _plain_variable(fact.name))

    def offer(self, context: PlaybookContext, place: Path) -> None:
        """Write the facts with which a playbook of this context begins into its own directory. Raise OSError."""
        prefix, payload = next((form for by, form in self._forms.items() if by.covers(context)), ("", False))
        place.mkdir()
        for host, facts in self.known(context).items():
            text = msgspec.json.encode(facts)
            content = msgspec.json.encode({_PAYLOAD: text.decode()}) if payload else text
            (place / f"{prefix}{host}").write_bytes(content)

    def learn(self, context: PlaybookContext, place: Path, secrets: Iterable[str]) -> list[str]:
        """Collect the facts in a playbook's own directory; `secrets` are its secret strings. Return messages about
        rejected facts. Raise OSError."""
        before, problems = self.known(context), list[str]()
        try:
            with Directory.at(place.parent) as parent, parent.below(place.name) as directory:
                found = self._read(context, directory, problems)
        except FileNotFoundError:
            return []  # the playbook gathered no facts
        except Strange as strange:
            return [f"Its facts are not stored: {strange}"]
        censor = Censor()
        censor.learn(secrets)
        # After problems, a missing host may be one that was rejected: do not treat its facts as removed.
        for host in found if problems else {**before, **found}:
            old, new = before.get(host, {}), found.get(host, {})
            for name in {**old, **new}:
                value = new.get(name, _GONE)
                if value != old.get(name, _GONE):
                    # Check the name, too: a playbook can hide a secret in a key.
                    secret = value is not _GONE and censor.value({name: value}) != {name: value}
                    self._left.append(_Fact(context, host, name, value, secret))
        return problems

    def _read(self, by: PlaybookContext, place: Directory, problems: list[str]) -> dict[str, dict[str, Any]]:
        """Return the facts of each host.  Raise OSError."""
        found, left = dict[str, dict[str, Any]](), TOTAL_SIZE_MAX_BYTES
        # Cut before sorting: a directory can have more names than fit into memory.
        names = sorted(islice(place.names(), HOSTS_MAX + 1))
        if len(names) > HOSTS_MAX:
            problems.append(f"Facts of at most {HOSTS_MAX} hosts are stored")
        for name in names[:HOSTS_MAX]:
            try:
                text = place.read(name, SIZE_MAX_BYTES) or b""
                left -= len(text)
                if len(text) > SIZE_MAX_BYTES or left < 0:
                    raise ValueError(_TOO_LARGE)
                facts, payload = _facts_of(text)
            except (ValueError, RecursionError, Strange) as error:
                problems.append(f"The facts of {shown(name)} are not stored: {error}")
                continue
            begins = _FILE_PREFIX.match(name) if payload else None
            prefix = begins[0] if begins else ""
            host = name.removeprefix(prefix)
            # The name becomes a path in the next playbook's directory.
            if host in ("", ".", "..") or len(os.fsencode(host)) > NAME_SIZE_MAX_BYTES:
                problems.append(f"The facts of {shown(name)} are not stored: that is not the name of a host")
                continue
            self._forms[by] = prefix, payload
            found[host] = facts
        return found


def _folded(facts: Iterable[_Fact]) -> dict[str, dict[str, Any]]:
    """Return the newest value of each fact, by host."""
    found: dict[str, dict[str, Any]] = {}
    for fact in facts:
        if fact.value is _GONE:
            found.get(fact.host, {}).pop(fact.name, None)
        else:
            found.setdefault(fact.host, {})[fact.name] = fact.value
    return found


def _plain_variable(name: str) -> bool:
    """Return whether a variable is neither Ansible's nor reserved for Headgate."""
    return not name.startswith(_FACT_PREFIXES) and is_permitted(name, "")


def _facts_of(text: bytes) -> tuple[dict[str, Any], bool]:
    """Return the facts in a file, without Ansible's metadata of values, and whether they are a payload.  Raise
    ValueError, RecursionError."""
    content = msgspec.json.decode(text, type=dict[str, Any])
    payload = _PAYLOAD in content
    facts = msgspec.json.decode(str(content[_PAYLOAD]), type=dict[str, Any]) if payload else content
    plain = ((name, list(_plain_values(value, DEPTH_MAX))) for name, value in facts.items())
    return {name: values[0] for name, values in plain if values}, payload


def _plain_values(value: Any, depth: int) -> Iterator[Any]:
    """Yield the value as plain JSON; nothing if it has, or contains, no JSON form. Raise ValueError if it is nested
    deeper than `depth`."""
    if not depth:
        raise ValueError(f"they have more than {DEPTH_MAX} nested lists and mappings")
    if isinstance(value, dict):
        # Newer versions of Ansible wrap all strings in a mapping with their type; older ones wrap only unsafe strings.
        if _UNSAFE in value or (_TAGGED in value and "value" in value):
            yield from _plain_values(value.get(_UNSAFE, value.get("value")), depth - 1)
            return
        inner = {name: list(_plain_values(one, depth - 1)) for name, one in value.items()}
        if not any(name.startswith("__ansible_") for name in value) and all(inner.values()):
            yield {name: found[0] for name, found in inner.items()}
    elif isinstance(value, list):
        items = [list(_plain_values(one, depth - 1)) for one in value]
        if all(items):
            yield [found[0] for found in items]
    else:
        yield value
