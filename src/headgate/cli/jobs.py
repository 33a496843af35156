"""How jobs are run, from the settings."""

from __future__ import annotations

from pathlib import Path

from headgate.adapters.nodes.machines import read_machines, read_variables
from headgate.adapters.process.phases import Limits
from headgate.adapters.process.runner import RunnerSettings
from headgate.adapters.process.sandbox import Paths
from headgate.cli.settings import FLAGS, Settings

_RESOURCES = {
    "memory_max_mb": ("RLIMIT_AS", 1_000_000),
    "processes_max": ("RLIMIT_NPROC", 1),
    "open_files_max": ("RLIMIT_NOFILE", 1),
    "file_size_max_mb": ("RLIMIT_FSIZE", 1_000_000),
}
"""Option -> name of the limit, and how many of its units one of the option is."""


def runner_settings(settings: Settings, hostname: str) -> RunnerSettings:
    """Reads the files that the settings name.  Raises UserError."""
    get, number = settings.get, settings.number
    nodes, variables = get("executor", "nodes"), get("executor", "variables")
    given = {name: number("executor", name) for name in _RESOURCES if get("executor", name)}
    return RunnerSettings(
        sandbox=get("executor", "sandbox"),
        network=FLAGS[get("executor", "sandbox_network").lower()],
        log_size_max_bytes=int(number("executor", "log_size_max_mb") * 1_000_000),
        files_size_max_bytes=int(number("executor", "files_size_max_mb") * 1_000_000),
        hostname=hostname,
        limits=Limits(timeout_s=int(number("executor", "default_timeout"))),
        resources={_RESOURCES[name][0]: int(value * _RESOURCES[name][1]) for name, value in given.items()},
        trusted=Paths(_paths(settings, "trusted_ro_paths"), _paths(settings, "trusted_rw_paths")),
        untrusted=Paths(_paths(settings, "untrusted_ro_paths"), _paths(settings, "untrusted_rw_paths")),
        variables=read_variables(settings.place("executor", "variables", "")) if variables else {},
        machines=read_machines(settings.place("executor", "nodes", "")) if nodes else (),
    )


def _paths(settings: Settings, option: str) -> tuple[Path, ...]:
    names = settings.get("executor", option).split(":")
    return tuple((settings.path.parent / Path(name).expanduser()).absolute() for name in names if name)
