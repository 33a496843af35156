"""Implement `headgate ansible`: install and list the versions of Ansible that jobs may request."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from headgate.adapters.ansible.install import install, known
from headgate.adapters.ansible.versions import Environments
from headgate.cli.groups import CommandGroup
from headgate.cli.jobs import environments
from headgate.cli.settings import find, read
from headgate.cli.terminal.say import say
from headgate.cli.terminal.screen import Terminal, TextTable
from headgate.config.keys.job import ANSIBLE_DEFAULT, ANSIBLE_VERSIONS

_config = click.option("--config", metavar="FILE", help="The settings file.")


@click.group(name="ansible", cls=CommandGroup)
def command() -> None:
    """Install and list the versions of Ansible that jobs request with `ansible-version`.

    Each version is the full Ansible package of that release, with its collections, in its own directory below
    [executor] ansible_root. Install it on the machine of every executor.
    """


@command.command(name="install")
@_config
@click.option("--all", "every", is_flag=True, help="Install every version that jobs may request.")
@click.option(
    "--from",
    "wheels",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Take the files from this directory instead of a package index.",
)
@click.argument("versions", nargs=-1, metavar="[VERSION]...")
def install_versions(config: str | None, every: bool, wheels: Path | None, versions: tuple[str, ...]) -> None:
    """Install the given versions of Ansible; without VERSION, install 11.

    Files come from the package index that pip is configured to use, and each must match a hash that this Headgate
    pins. Versions that are up to date stay unchanged; versions that an earlier Headgate installed are updated. Run
    this command as the executor's user.
    """
    if every and versions:
        raise click.UsageError("give either versions or --all, not both")
    wanted = ANSIBLE_VERSIONS if every else versions or (ANSIBLE_DEFAULT,)
    # Check all names first: a typo must not leave half of the versions installed.
    for version in wanted:
        known(version)
    environments = _environments(config)
    # `dict.fromkeys` drops repeated versions and keeps their order.
    for version in dict.fromkeys(wanted):
        found = install(environments, version, say=say, wheels=wheels.absolute() if wheels else None)
        say(f"{found.name} is installed in {found.place}")


class AnsibleRow(msgspec.Struct, frozen=True):
    """Describe one version, and whether it is installed."""

    version: str
    core: str
    """Version of ansible-core: in the installed package, or in the one that would be installed."""
    state: str
    """installed | outdated | missing"""
    place: str = ""


STATES = {
    "installed": "installed",
    "outdated": "outdated; `headgate ansible install {}` updates it",
    "missing": "not installed; `headgate ansible install {}`",
}


@command.command(name="list")
@_config
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_versions(config: str | None, as_json: bool) -> None:
    """List the versions that jobs may request, and whether they are installed on this machine."""
    rows = [row(_environments(config), version) for version in ANSIBLE_VERSIONS]
    if as_json:
        say(msgspec.json.format(msgspec.json.encode(rows)).decode())
        return
    table = TextTable("version", "ansible-core", "state", "directory")
    for one in rows:
        table.add_row(one.version, one.core, STATES[one.state].format(one.version), one.place)
    Terminal().print(table)


@command.command()
@click.argument("version")
def requirements(version: str) -> None:
    """Print the packages of VERSION with their hashes, as a requirements file for pip.

    For machines without a network, fetch the packages with `pip download --only-binary :all: -r FILE -d DIRECTORY`,
    and install them there with `headgate ansible install --from DIRECTORY`.
    """
    known(version)
    say(Environments(Path()).lock(version).read_text(), nl=False)


def row(here: Environments, version: str) -> AnsibleRow:
    """Return the row that describes a version."""
    found = here.find(version)
    if found is None:
        return AnsibleRow(version, here.core(version), "missing")
    return AnsibleRow(version, found.mark.core, "installed" if found.current else "outdated", str(found.place))


def _environments(config: str | None) -> Environments:
    """Return the installed versions below the directory that the settings name. Raise UserError."""
    return environments(read(find(config)))
