"""Facts about hosts, as playbooks of one build find them out, gather them or set them, for the playbooks after them.

Ansible keeps them in a directory of JSON (`fact_caching = jsonfile`), one of its own for each playbook: what it ends
with is read here, strictly, and the next playbook begins with it.  A fact overrules the inventory, and some facts tell
Ansible what to run.  So a playbook takes a fact as a fact only from those that have every right it has itself; from
others it gets it as a variable of the inventory, beneath those of the job and under the same rules: a plain text that
says nothing to Ansible.  What holds a secret goes to nobody who lacks that secret, and what was gathered of this
machine, where each context has a home of its own, stays in its context.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from headgate.adapters.keys.censor import Censor
from headgate.adapters.process.context.places import PlaybookContext
from headgate.adapters.process.context.values import may_be_told
from headgate.adapters.work.directory import Directory, Strange, shown

HOSTS_MAX = 500
SIZE_MAX_BYTES = 1_000_000
"""Size of the facts of one host."""
WHOLE_SIZE_MAX_BYTES = 8_000_000
"""Size of all facts at the end of one playbook."""

DEPTH_MAX = 100
"""Nesting depth of lists and mappings; each level costs several calls when a variable is written."""
NAME_SIZE_MAX_BYTES = 200
"""Size of a host's name."""
_TOO_LARGE = f"they are more than {SIZE_MAX_BYTES // 1_000} kB, or {WHOLE_SIZE_MAX_BYTES // 1_000} kB with all others"
_PAYLOAD = "__payload__"
"""Key under which Ansible 2.19 and newer store the facts, as JSON text."""
_PREFIX = re.compile(r"s[0-9]{1,9}_")
"""Prefix of the names of files with a payload."""
_TAGGED, _UNSAFE = "__ansible_type", "__ansible_unsafe"
_GONE = object()
_OF_ANSIBLE = ("ansible_", "_", "discovered_interpreter_", "module_setup", "gather_subset")


@dataclass(frozen=True, slots=True)
class _Fact:
    """Represent a fact that a playbook left otherwise than it found it."""

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
        """Return the facts with which such a playbook begins, by host. JSON."""
        # The rule of this module: taken as a fact only from who has every right that the reader has.
        covered = (fact for fact in self._left if fact.allowed_in(context) and fact.by.covers(context))
        return _folded(fact for fact in covered if fact.by == context or not self._of_here(fact))

    def _of_here(self, fact: _Fact) -> bool:
        return fact.host in self.here and fact.name.startswith(_OF_ANSIBLE)

    def from_fewer_rights(self, context: PlaybookContext) -> dict[str, dict[str, Any]]:
        """Return the facts from playbooks with fewer rights than such a playbook, by host: for variables. JSON."""
        others = (fact for fact in self._left if fact.allowed_in(context) and not fact.by.covers(context))
        return _folded(fact for fact in others if _plain_variable(fact.name))

    def offer(self, context: PlaybookContext, place: Path) -> None:
        """Write the facts with which such a playbook begins into its own directory. Raises OSError."""
        prefix, payload = next((form for by, form in self._forms.items() if by.covers(context)), ("", False))
        place.mkdir()
        for host, facts in self.known(context).items():
            text = msgspec.json.encode(facts)
            content = msgspec.json.encode({_PAYLOAD: text.decode()}) if payload else text
            (place / f"{prefix}{host}").write_bytes(content)

    def learn(self, context: PlaybookContext, place: Path, secrets: Iterable[str]) -> list[str]:
        """Collect the facts in a playbook's own directory; `secrets` are its secret texts. Return, for people, which
        facts are rejected. Raises OSError."""
        before, problems = self.known(context), list[str]()
        try:
            with Directory.at(place.parent) as parent, parent.below(place.name) as directory:
                found = self._read(context, directory, problems)
        except FileNotFoundError:
            return []  # the playbook gathered no facts
        except Strange as strange:
            return [f"Its facts are not kept: {strange}"]
        censor = Censor()
        censor.learn(secrets)
        # With problems, a host that is missing may be one that was rejected: its facts are not taken for removed.
        for host in found if problems else {**before, **found}:
            old, new = before.get(host, {}), found.get(host, {})
            for name in {**old, **new}:
                value = new.get(name, _GONE)
                if value != old.get(name, _GONE):
                    # The name counts, too: a playbook can hide a secret in a key.
                    secret = value is not _GONE and censor.value({name: value}) != {name: value}
                    self._left.append(_Fact(context, host, name, value, secret))
        return problems

    def _read(self, by: PlaybookContext, place: Directory, problems: list[str]) -> dict[str, dict[str, Any]]:
        """Return the facts of each host.  Raises OSError."""
        found, left = dict[str, dict[str, Any]](), WHOLE_SIZE_MAX_BYTES
        # Cut before the sort: a directory can have more names than memory holds.
        names = sorted(islice(place.names(), HOSTS_MAX + 1))
        if len(names) > HOSTS_MAX:
            problems.append(f"Facts are kept of {HOSTS_MAX} hosts at most")
        for name in names[:HOSTS_MAX]:
            try:
                text = place.read(name, SIZE_MAX_BYTES) or b""
                left -= len(text)
                if len(text) > SIZE_MAX_BYTES or left < 0:
                    raise ValueError(_TOO_LARGE)
                facts, payload = _facts(text)
            except (ValueError, RecursionError, Strange) as error:
                problems.append(f"The facts of {shown(name)} are not kept: {error}")
                continue
            begins = _PREFIX.match(name) if payload else None
            prefix = begins[0] if begins else ""
            host = name.removeprefix(prefix)
            # The name becomes a path in the next playbook's directory.
            if host in ("", ".", "..") or len(os.fsencode(host)) > NAME_SIZE_MAX_BYTES:
                problems.append(f"The facts of {shown(name)} are not kept: that is not a name of a host")
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
    """Tell whether a variable is neither Ansible's nor reserved for Headgate."""
    return not name.startswith(_OF_ANSIBLE) and may_be_told(name, "")


def _facts(text: bytes) -> tuple[dict[str, Any], bool]:
    """Return the facts in a file, without what Ansible keeps beside a value; and whether they are a payload.  Raises
    ValueError, RecursionError."""
    content = msgspec.json.decode(text, type=dict[str, Any])
    payload = _PAYLOAD in content
    facts = msgspec.json.decode(str(content[_PAYLOAD]), type=dict[str, Any]) if payload else content
    plain = ((name, list(_values(value, DEPTH_MAX))) for name, value in facts.items())
    return {name: values[0] for name, values in plain if values}, payload


def _values(value: Any, depth: int) -> Iterator[Any]:
    """Yield the value as plain JSON; nothing if it has, or contains, no JSON form. Raise ValueError if it is nested
    deeper than `depth`."""
    if not depth:
        raise ValueError(f"they have more than {DEPTH_MAX} lists and mappings in one another")
    if isinstance(value, dict):
        # Newer versions of Ansible wrap texts in a mapping that says how they are to be taken; older ones only unsafe
        # texts.
        if _UNSAFE in value or (_TAGGED in value and "value" in value):
            yield from _values(value.get(_UNSAFE, value.get("value")), depth - 1)
            return
        inner = {name: list(_values(one, depth - 1)) for name, one in value.items()}
        if not any(name.startswith("__ansible_") for name in value) and all(inner.values()):
            yield {name: found[0] for name, found in inner.items()}
    elif isinstance(value, list):
        items = [list(_values(one, depth - 1)) for one in value]
        if all(items):
            yield [found[0] for found in items]
    else:
        yield value
