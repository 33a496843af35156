"""Find Ansible, and configure it and its inventory for the playbooks of a build."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from headgate.adapters.ansible.versions import Environment, beside
from headgate.adapters.keys.clear import Clear, write_private
from headgate.adapters.process.access import AnsibleInventory, Hosts, known_host
from headgate.adapters.process.containers.box import CONNECTION
from headgate.adapters.process.context import hostvars
from headgate.adapters.process.context.places import PlaybookContext
from headgate.adapters.process.joboutput import EVENTS, EVENTS_VARIABLE
from headgate.adapters.process.workspace import BadPlaybook, Stage, Workspace
from headgate.adapters.process.zygotes.program import NOWHERE
from headgate.adapters.work.directory import Directory, Strange
from headgate.config.model import Playbook

PLUGINS = Path(__file__).parent / "ansible_plugins"
EVALUATE = PLUGINS / "evaluate.yaml"
MISSING = (
    "this playbook needs Ansible, which is not installed; install it with: headgate ansible install, or, alongside "
    "Headgate, with: pip install 'headgate[ansible]'"
)
SOCKET_DIRECTORY_SIZE_MAX = 80
UNREACHABLE_SIZE_MAX_BYTES = 100_000
UNREACHABLE_VARIABLE = "HEADGATE_UNREACHABLE"
HERE_VARIABLE = "HEADGATE_HERE"
"""Variable with the names of the hosts that are this machine."""
LOGS_VARIABLE = "HEADGATE_LOGS"
"""Variable with the directory of the logs."""
CONTAINERS_VARIABLE = "HEADGATE_CONTAINERS"
"""Variable with the names of the hosts that are the job's container."""
SHOWN = (
    "ansible_connection", "ansible_host", "ansible_port", "ansible_python_interpreter", "ansible_shell_type",
    "ansible_ssh_user", "ansible_user", "nodepool", "zuul_node",
)  # fmt: skip
"""Variables of a host in the published inventory, besides those that the job sets."""
STREAMS_VARIABLE = "HEADGATE_STREAMS"
LIBRARY_VARIABLE = "HEADGATE_LIBRARY"
"""Variable with the directories of Headgate and its dependencies, for our plugins in another environment."""


LIBRARY = (str(Path(__file__).parents[3]), str(Path(msgspec.__file__).parents[1]))
Command = tuple[list[str], dict[str, str]]
"""Arguments and environment variables of a command. No Ansible variable is on a command line."""


class Playbooks:
    """Run the playbooks of one build."""

    def __init__(self, workspace: Workspace, hosts: Hosts, user: str, environment: Environment | None = None) -> None:
        """Prepare playbooks; for `user`, see `AnsibleInventory`. Without an `environment`, the Ansible that is
        installed alongside Headgate runs them."""
        self._workspace, self._user, self._environment = workspace, user, environment
        self._hosts = hosts or {hostvars.LOCALHOST: {"ansible_connection": "local"}}
        self._unreachable = set[str]()
        self._values: hostvars.Values | None = None
        local_hosts = [name for name, found in self._hosts.items() if found.get("ansible_connection") == "local"]
        self._facts = hostvars.FactCache((*local_hosts, hostvars.LOCALHOST))
        workspace.contexts.know_hosts(self._known_hosts)

    @property
    def _inventory(self) -> AnsibleInventory:
        return AnsibleInventory(self._workspace.spec.job, self._hosts, self._user)

    @property
    def _job_variables(self) -> hostvars.JobVariables:
        return hostvars.JobVariables(self._workspace.spec, self._workspace.included)

    @property
    def _known_hosts(self) -> str:
        return "".join(known_host(name, host) for name, host in self._hosts.items())

    @property
    def installed(self) -> tuple[Path, ...]:
        """Return the directories in which Ansible is installed, apart from Headgate's own."""
        return (self._environment.place,) if self._environment else ()

    @property
    def contained(self) -> list[str]:
        """Return the hosts that are the container of the build."""
        return [name for name, found in self._hosts.items() if found.get("ansible_connection") == CONNECTION]

    def unevaluated(self, stage: Stage) -> bool:
        """Return whether the job's variables contain templates that must be evaluated before this playbook may have
        them.
        """
        careful = stage.is_ansible and stage.context.careful
        return careful and self._values is None and hostvars.templates(self._job_variables.harmless(self._hosts))

    def evaluation(self, stage: Stage) -> Command:
        """Return the command with which `stage`, which has no rights, evaluates the job's variables. Raise
        BadPlaybook."""
        variables = hostvars.plain(self._job_variables.harmless(self._hosts))
        inventory = self._inventory.flat({host: dict(values) for host, values in variables.items()})
        elsewhere = [host for host in self._hosts if host not in self._facts.here]
        wanted = hostvars.evaluation_arguments(variables, str(stage.output_dir), elsewhere)
        return self._command(stage, inventory, {**self._extra(stage), hostvars.OWN_VARIABLE: wanted})

    def learn(self, stage: Stage) -> None:
        """Store the values of the job's variables from the evaluation in `stage`. Raise BadPlaybook."""
        wanted = self._job_variables.harmless(self._hosts)
        files = hostvars.evaluation_arguments(wanted, str(stage.output_dir))["files"]
        try:
            with Directory.at(stage.output_dir) as directory:
                self._values = {
                    h: hostvars.evaluated(_read(directory, Path(files[h])), names) for h, names in wanted.items()
                }
        except (OSError, ValueError, Strange) as error:
            raise BadPlaybook(f"the variables of the job cannot be evaluated: {error}") from error

    def public_inventory(self) -> dict[str, Any]:
        """Return the inventory for readers of the logs, without credentials of machines, and without the site's
        variables. JSON."""
        host_vars, site = self._workspace.spec.job.host_vars, self._workspace.site
        every = self._inventory.live({}, ())["all"]
        hosts = {
            name: {key: value for key, value in host.items() if key in SHOWN or key in host_vars.get(name, {})}
            for name, host in every["hosts"].items()
        }
        everywhere = {name: value for name, value in self._workspace.variables().items() if name not in site}
        return {"all": {**every, "hosts": hosts, "vars": everywhere}}

    def command(self, stage: Stage, phase_variables: Mapping[str, Any], clear: Clear, handed: Clear) -> Command:
        """Return the command that runs a playbook. The secrets (`clear` and `handed`) are in files until `stage`
        removes them. Secrets from other jobs (`handed`) are in a separate inventory before the readable one, so that
        everything else overrides them. Raise BadPlaybook."""
        extra, missed = self._extra(stage), sorted(self._unreachable)
        if stage.context.careful:
            # These were evaluated without rights, or contain no templates (see `unevaluated`): this playbook would
            # evaluate templates with its own rights.
            values = self._values or self._job_variables.harmless(self._hosts)
            extra = self._careful_extra(stage, values)
            inventory = _with_raw(
                self._inventory.flat(hostvars.literal(dict(values)), missed), hostvars.literal(hostvars.plain(values))
            )
            self._tell(stage, values)
        else:
            raw = hostvars.plain(self._job_variables.harmless(self._hosts))
            inventory = _with_raw(self._inventory.live(self._job_variables.everywhere, missed), raw)
        self._facts.offer(stage.context, stage.facts)
        words, environment = self._command(stage, inventory, {**extra, **phase_variables})
        if clear:
            write_private(stage.secrets, hostvars.for_ansible(hostvars.literal(clear)))
            # Insert it before the other extra variables, the last of which wins, so that no secret can replace `zuul`
            # or the site's variables.
            words[1:1] = ["-e", f"@{stage.secrets}"]
        if handed:
            careful = stage.context.careful
            allowed = {
                name: value for name, value in handed.items() if not careful or hostvars.is_permitted(name, value)
            }
            write_private(stage.handed, hostvars.for_ansible({"all": {"vars": hostvars.literal(allowed)}}))
            words[1:1] = ["-i", str(stage.handed)]
        return words, environment

    def found(self, stage: Stage, secrets: Iterable[str]) -> list[str]:
        """Collect the playbook's facts; `secrets` are its secret strings. Return messages about rejected facts. Raise
        OSError."""
        return self._facts.learn(stage.context, stage.facts, secrets)

    def missed(self, stage: Stage) -> bool:
        """Return whether the playbook could not reach a host.  Raise OSError."""
        with Directory.at(stage.output_dir) as directory:
            try:
                names = directory.read(_unreachable(stage).name, UNREACHABLE_SIZE_MAX_BYTES)
            except Strange:  # the job replaced the file, so assume the worst
                return True
        # The existence of the file counts; the names in it only decide which hosts get into a group.
        self._unreachable.update((names or b"").decode(errors="replace").splitlines())
        return names is not None

    def _tell(self, stage: Stage, values: hostvars.Values) -> None:
        """Write facts from playbooks with fewer rights as variables of hosts, except those that the job sets."""
        facts = self._facts.from_fewer_rights(stage.context)
        for host in {**self._hosts, hostvars.LOCALHOST: {}}:
            remaining = {name: value for name, value in facts.get(host, {}).items() if name not in values[host]}
            if remaining:
                file = stage.own / "host_vars" / host
                file.parent.mkdir(exist_ok=True)
                file.write_bytes(hostvars.for_ansible(hostvars.literal(remaining)))

    def _command(self, stage: Stage, inventory: dict[str, Any], extra: dict[str, Any]) -> Command:
        program = program_of(self._environment)
        if program is None:
            raise BadPlaybook(MISSING)
        config, known = stage.own / "ansible.cfg", stage.own / "known_hosts"
        every = inventory["all"]
        shown = {**every, "vars": {**every["vars"], "zuul": extra["zuul"]}}  # for readers of the file
        stage.inventory.write_bytes(hostvars.for_ansible({"all": shown}))
        stage.variables.write_bytes(hostvars.for_ansible(extra))
        known.write_text(self._known_hosts)
        config.write_text(_config(stage, known))
        environment = {
            "ANSIBLE_CONFIG": str(config),
            "ANSIBLE_HOME": str(stage.context.home / ".ansible"),
            UNREACHABLE_VARIABLE: str(_unreachable(stage)),
            EVENTS_VARIABLE: str(stage.output_dir / EVENTS),
            LOGS_VARIABLE: str(self._workspace.logs),
            HERE_VARIABLE: ",".join(self._facts.here),
            CONTAINERS_VARIABLE: ",".join(self.contained),
            LIBRARY_VARIABLE: os.pathsep.join(LIBRARY),
        }
        return [program, "-e", f"@{stage.variables}", "-i", str(stage.inventory), str(stage.path)], environment

    def _extra(self, stage: Stage) -> dict[str, Any]:
        return {**self._workspace.spec.job.extra_vars, **self._site(stage)}

    def _careful_extra(self, stage: Stage, values: hostvars.Values) -> dict[str, Any]:
        """Return the extra variables; none that a job sets overrides one that a trusted playbook sets."""
        extra = () if stage.context.trusted else self._workspace.spec.job.extra_vars
        local_values = values[hostvars.LOCALHOST]
        return {
            **{name: hostvars.literal(local_values[name]) for name in extra if name in local_values},
            **self._site(stage),
        }

    def _site(self, stage: Stage) -> dict[str, Any]:
        """Return the variables that override all others; templates in messages, topics and branches are not
        evaluated."""
        return {**self._workspace.site, "zuul": hostvars.literal(self._workspace.zuul(stage))}


def _with_raw(inventory: dict[str, Any], values: hostvars.Values) -> dict[str, Any]:
    """Return the inventory with the job's variables of each host also as one mapping, `unsafe_vars`.  JSON."""
    every = inventory["all"]
    hosts = {name: {**own, hostvars.RAW_VARIABLE: values[name]} for name, own in every["hosts"].items()}
    return {
        "all": {**every, "hosts": hosts, "vars": {**every["vars"], hostvars.RAW_VARIABLE: values[hostvars.LOCALHOST]}}
    }


def _read(directory: Directory, path: Path) -> bytes:
    """Read a file of variables that were evaluated.  Raise Strange, OSError, ValueError."""
    text = directory.read(path.name, hostvars.EVALUATED_SIZE_MAX_BYTES)
    if text is None or len(text) > hostvars.EVALUATED_SIZE_MAX_BYTES:
        raise ValueError(f"the result is missing, or larger than {hostvars.EVALUATED_SIZE_MAX_BYTES // 1_000} kB")
    return text


def _unreachable(stage: Stage) -> Path:
    return stage.output_dir / "unreachable"


def _sockets(stage: Stage) -> Path:
    """Return a directory of this playbook whose name is short enough for sockets in it."""
    near = stage.context.tmp / "cp"
    build = stage.own.parents[1].name[:12]
    # In a sandbox, /tmp belongs to the playbook; without one, the build's id makes the name unique.
    short = Path("/tmp", f"headgate-{build}-{stage.own.name}")
    return near if len(str(near)) <= SOCKET_DIRECTORY_SIZE_MAX else short


def program_of(environment: Environment | None) -> str | None:
    """Return the program that runs playbooks; None if there is none."""
    return environment.program if environment else beside()


def shared_config() -> str:
    """Return settings for no particular playbook, with which a zygote imports Ansible."""
    nowhere = Path(NOWHERE)
    own, context = nowhere / "playbooks" / "0", PlaybookContext(nowhere / "contexts" / "0", trusted=False)
    stage = Stage(Playbook("", "", "", ""), nowhere / "play.yaml", (), context, own, own / "said", ())
    return _config(stage, own / "known_hosts")


def _config(stage: Stage, known: Path) -> str:
    # Every path belongs to the playbook: Ansible's defaults are in /etc and in a shared home, where another context
    # could leave plugins.
    home, tmp = stage.context.home, stage.context.tmp
    return (
        "[defaults]\n"
        f"inventory = {stage.inventory}\nroles_path = {':'.join(str(role) for role in stage.roles or (stage.own,))}\n"
        f"library = {PLUGINS / 'modules'}\naction_plugins = {PLUGINS / 'action'}\n"
        f"callback_plugins = {PLUGINS / 'callback'}\nstdout_callback = headgate\n"
        f"connection_plugins = {PLUGINS / 'connection'}\n"
        f"local_tmp = {tmp}/local\nremote_tmp = {tmp}/remote\nasync_dir = {tmp}/async\n"
        f"fact_caching = jsonfile\nfact_caching_connection = {stage.facts}\nfact_caching_timeout = 0\n"
        "host_key_checking = False\nretry_files_enabled = False\nnocows = True\nnocolor = True\n"
        "interpreter_python = auto_silent\ngathering = smart\ntimeout = 30\nallow_broken_conditionals = True\n"
        "[ssh_connection]\n"
        f"pipelining = True\ncontrol_path_dir = {_sockets(stage)}\n"
        f"ssh_args = -o ControlMaster=auto -o ControlPersist=60s -o GlobalKnownHostsFile={known} "
        f"-o UserKnownHostsFile={home}/.ssh/known_hosts\n"
        "retries = 3\n"
    )
