"""Variables that a job sets, and their values in a playbook that has more rights than the job's author.

In Ansible a variable may be a template, which runs programs, reads files and names other variables.  A playbook that is
trusted or has secrets gets what a job's variables come to where nobody has any rights, as plain texts; and none that
tells Ansible which programs to start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from headgate.config.keys.job import RESERVED_VARS
from headgate.gate.work import BuildSpec

LOCALHOST = "localhost"
EVALUATED_SIZE_MAX_BYTES = 2_000_000
OWN_VARIABLE = "headgate_values"
"""Variable that says which variables to evaluate, and where to write the values."""
RAW_VARIABLE = "unsafe_vars"
"""Variable with all variables of the job. A playbook with more rights than the job's author finds their values only
there: a template that it evaluated, even to print a host's variables, would be the author's program."""
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
"""Variables of Ansible itself that are safe to set: they name no program, file or argument of one."""

_OF_ANSIBLE = "ansible_"

Values = Mapping[str, Mapping[str, Any]]
"""Host -> variable -> value. JSON."""


class LiteralText(str):
    """Represent text that is taken literally, even if it looks like a template."""


def literal(value: Any) -> Any:  # JSON
    """Return the value with every text, also in names, taken literally."""
    if isinstance(value, dict):
        return {LiteralText(key): literal(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [literal(inner) for inner in value]
    return LiteralText(value) if isinstance(value, str) else value


_TEXT = "tag:yaml.org,2002:str"


class _Dumper(yaml.CSafeDumper):
    def text(self, value: LiteralText) -> yaml.ScalarNode:
        """Represent a text as `!unsafe`. Ansible 2.19 takes an `!unsafe` text that looks like a number, a date or a
        truth value for one: such texts, which are no templates, are only quoted."""
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
        """Return the variables that a playbook with more rights may have, with the job's values."""
        places = dict.fromkeys((*hosts, LOCALHOST))
        return {host: {name: v for name, v in self.on(host).items() if may_be_told(name, v)} for host in places}


def may_be_told(name: str, value: Any) -> bool:
    """Return whether a playbook with more rights may get a variable of a job."""
    # ansible_python_interpreter, ansible_ssh_common_args and many more name programs to start: nothing but a list of
    # harmless ones is safe, as each version adds others.
    if name.startswith(_OF_ANSIBLE):
        return name in HARMLESS and not templates(value)
    return name not in RESERVED_VARS


def plain(values: Values) -> Values:
    """Return the variables except those that Ansible itself reads."""
    return {
        host: {name: value for name, value in variables.items() if not name.startswith(_OF_ANSIBLE)}
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
    """Return the arguments of the action `headgate_values`: it writes one file a host, and gathers the facts of those
    `elsewhere` whose variables name one. JSON."""
    variables = plain(wanted)
    return {
        "names": {host: sorted(names) for host, names in variables.items()},
        "files": {host: f"{place}/values-{n}" for n, host in enumerate(wanted)},
        "facts": [host for host in elsewhere if _names_facts(variables.get(host))],
    }


def _names_facts(value: Any) -> bool:  # JSON
    """Return whether it contains a template that names a fact of a host."""
    if isinstance(value, Mapping):
        return any(_names_facts(key) or _names_facts(inner) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return any(map(_names_facts, value))
    return templates(value) and _OF_ANSIBLE in value


def evaluated(text: bytes, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that it wrote for one host, in place of the `wanted` variables. Raises ValueError."""
    try:
        found = msgspec.json.decode(text, type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        raise ValueError(f"what they come to cannot be read: {error}") from error
    # Not evaluated: may_be_told let only those pass that contain no template.
    own = {name: value for name, value in wanted.items() if name.startswith(_OF_ANSIBLE)}
    # Only the wanted names: the file was written where a job's templates ran, which may have added any.
    return own | {name: found[name] for name in wanted if name in found}
