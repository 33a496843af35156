"""Write the configuration for existing repositories, on a git server or a forge, for `headgate init --connect`."""

from __future__ import annotations

import os
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from headgate.adapters.forges.accounts import address
from headgate.base.errors import UserError

HOSTS = {
    "codeberg.org": "gitea",
    "gitea.com": "gitea",
    "github.com": "github",
    "gitlab.com": "gitlab",
    "pagure.io": "pagure",
}
"""Host -> driver, for hosts whose driver is known."""
_NAME = re.compile(r"(?=.{1,200}$)[A-Za-z0-9][A-Za-z0-9._+-]*(/(?!\.(/|$))[A-Za-z0-9._+-]+)*")
_WORDS = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")


class ConnectedForge(NamedTuple):
    """Describe how to connect one kind of forge."""

    connection: str
    """Name of the connection, as pipelines use it."""
    settings: str
    """Lines of the connection's section, with {server} and {secret} to fill in."""
    variables: tuple[str, ...] = ()
    """Environment variables that must be set."""
    page: str = ""
    """Name of the how-to page in the documentation."""
    roots: bool = True
    """Whether the section may set `baseurl`, for a forge that is not at the root of https://SERVER."""


TOKEN = "api_token = %(HEADGATE_FORGE_TOKEN)s\n"
HOOK = "webhook_token = {secret}\n"
FORGES: Mapping[str, ConnectedForge] = {
    "git": ConnectedForge("local", "baseurl = {url}\n", page="use-plain-git"),
    "github": ConnectedForge(
        "hub", f"server = {{server}}\n{TOKEN}{HOOK}", ("HEADGATE_FORGE_TOKEN",), "use-github", roots=False
    ),
    "gitlab": ConnectedForge("lab", f"server = {{server}}\n{TOKEN}{HOOK}", ("HEADGATE_FORGE_TOKEN",), "use-gitlab"),
    "gitea": ConnectedForge("hub", f"server = {{server}}\n{TOKEN}{HOOK}", ("HEADGATE_FORGE_TOKEN",), "use-gitea"),
    "pagure": ConnectedForge("hub", f"server = {{server}}\n{TOKEN}", ("HEADGATE_FORGE_TOKEN",), "use-pagure"),
    "gerrit": ConnectedForge(
        "review",
        "server = {server}\nuser = headgate\npassword = %(HEADGATE_FORGE_PASSWORD)s\n",
        ("HEADGATE_FORGE_PASSWORD",),
        "use-gerrit",
    ),
}
CONNECTED_SETTINGS = """\
# Headgate's settings. Relative paths are relative to this file; docs/reference/settings.md has every option.
[scheduler]
tenant_config = tenants.yaml
state_dir = state

[connection {connection}]
driver = {driver}
{lines}
[connection here]
# The configuration: pipelines and jobs.
driver = git
baseurl = repositories

[keystore]
# Encrypts the keys of projects. Keep a copy: without it, no secret can be decrypted.
password = {password}

[web]
port = 9000
"""
TENANTS = """\
- tenant:
    name: example
    source:
      here:
        config-projects:
          - config
      {connection}:
        # The gated projects. A change to their own zuul.yaml or .zuul.yaml takes effect in its own tests.
        untrusted-projects:
{projects}
"""
JOBS = """\

- job:
    name: base
    parent: null
    abstract: true
    timeout: 1800

- job:
    name: test
    description: Runs the tests of the change's own project, merged with everything ahead of the change.
    run: jobs/test            # any executable file, or an Ansible playbook (.yaml)
{queue}
- project:
    name: ^({pattern})$
    queue: integrated         # projects with the same queue are tested on top of each other
    check:
      jobs: [test]
    gate:
      jobs: [test]
"""
CONFIGURATION = """\

# Changes of this repository, proposed and approved with git: what lands has no errors in the configuration.
- pipeline:
    name: config-check
    manager: independent
    trigger:
      here:
        - event: change-proposed
    success:
      here: {}
    failure:
      here: {}

- pipeline:
    name: config-gate
    manager: dependent
    post-review: true
    trigger:
      here:
        - event: change-approved
    require:
      here:
        approved: true
    success:
      here:
        land: true
    failure:
      here: {}

- project:
    name: here/config
    config-check:
      jobs: [noop]
    config-gate:
      jobs: [noop]
"""
QUEUE = "\n- queue:\n    name: integrated\n"
TEST = """\
#!/bin/sh
# Runs the tests of one repository. Edit this for all repositories, or give each its own job.
set -eu
if [ -x ./test ]; then exec ./test
elif [ -f Makefile ] && grep -q '^test:' Makefile; then exec make test
elif [ -f tox.ini ]; then exec tox
elif [ -f pyproject.toml ]; then exec python3 -m pytest
elif [ -f package.json ]; then exec npm test
elif [ -f go.mod ]; then exec go test ./...
elif [ -f Cargo.toml ]; then exec cargo test
fi
echo "jobs/test of the repository config does not know how to test $ZUUL_PROJECT" >&2
exit 1
"""


class ConnectedFiles(NamedTuple):
    """Hold the files to write, and the steps that remain for the user."""

    settings: str
    tenants: str
    config: Mapping[str, str]
    """Path -> text of the files in the repository `config`."""
    todo: Sequence[str]


def connected(url: str, names: Sequence[str], driver: str = "") -> ConnectedFiles:
    """Return the files for the repositories with these names below `url`. Raise UserError."""
    split = _split(url)
    driver = driver or HOSTS.get(split.hostname or "", "git")
    if not names:
        raise UserError("name the repositories to gate, as in: headgate init --connect URL team/api team/app")
    for name in names:
        # Names become paths, regular expressions and YAML, so allow only harmless characters.
        if not _NAME.fullmatch(name) or ".." in name:
            raise UserError(f"{name!r} is not a valid name of a repository below the URL; use one such as team/api")
    names = list(dict.fromkeys(names))
    forge = FORGES[driver]
    lines = forge.settings.format(server=split.netloc, url=url.rstrip("/"), secret=secrets.token_urlsafe(32))
    lines += _root(url, split, driver) if driver != "git" else ""
    settings = CONNECTED_SETTINGS.format(
        connection=forge.connection, driver=driver, lines=lines, password=secrets.token_urlsafe(32)
    )
    projects = "\n".join(f"          - {_text(name)}" for name in names)
    pipelines = _pipelines(driver)
    jobs = JOBS.format(
        # `re.escape` writes `\-`, which is correct but hard to read.
        pattern="|".join(re.escape(name).replace("\\-", "-") for name in names),
        queue="" if "- queue:" in pipelines else QUEUE,
    )
    return ConnectedFiles(
        settings,
        TENANTS.format(connection=forge.connection, projects=projects),
        {"zuul.yaml": pipelines.rstrip() + "\n" + jobs + CONFIGURATION, "jobs/test": TEST},
        [f"export {name}=…    # see docs/how-to/{forge.page}.md" for name in forge.variables],
    )


def local_directory(url: str) -> Path | None:
    """Return the absolute path of a directory of this machine, or None for an address of a server. Raise UserError if
    there is no such directory."""
    # As for git, `host:path` is an address for ssh unless a slash precedes the colon.
    if not url.strip() or url.startswith("-") or ":" in url.partition("/")[0]:
        return None
    path = Path(os.path.abspath(url))
    if not path.is_dir():
        raise UserError(
            "--connect: this is not a directory of this machine; a server has an address such as https://git.example.com"
        )
    return path


def bare_repository(directory: Path, name: str) -> Path:
    """Return the repository with this name in the directory. Raise UserError if Headgate could not push to it."""
    for path in (directory / name, directory / f"{name}.git"):
        if (path / "HEAD").is_file() and (path / "objects").is_dir():
            return path
    path = directory / name
    if not (path / ".git").exists():
        raise UserError(f"--connect: {path} is not a git repository")
    bare = shlex.join(["git", "clone", "--bare", str(path), f"DIRECTORY/{name}"])
    raise UserError(
        f"--connect: {path} has a work tree, and git refuses pushes to the branch that is checked out there; make a "
        f"bare repository, and connect DIRECTORY: {bare}"
    )


def _text(name: str) -> str:
    """Return a name as a YAML string: quote names, such as 2048 and null, that YAML would read as other types."""
    return f'"{name}"' if name[0].isdigit() or name.lower() in _WORDS else name


def _split(url: str) -> SplitResult:
    try:
        # The settings would read `%(` as a variable, and git a leading dash as an option.
        if not url.strip() or not url.isprintable() or url.startswith("-") or "%(" in url or "%%" in url:
            raise ValueError("this is not a URL of a git server or a forge")
        return urlsplit(url)
    except ValueError as error:
        # The URL is not quoted: people paste URLs with passwords, and errors end up in logs and tickets.
        raise UserError(f"--connect: {error}") from None


def _root(url: str, split: SplitResult, driver: str) -> str:
    """Return the `baseurl` line for a forge that is not at the root of https://SERVER. Raise UserError."""
    if not split.netloc:
        raise UserError(f"--connect: for {driver}, give a URL such as https://{driver}.example.com")
    if split.username is not None:
        why = "the URL must not contain a user or a password; the settings take them from the environment"
        raise UserError(f"--connect: {why}")
    root = address("--connect", url)
    if root == f"https://{split.netloc}":
        return ""
    if split.hostname in HOSTS or not FORGES[driver].roots:
        alone = f"give only the server, https://{split.netloc}, and repositories by their names there, such as team/api"
        raise UserError(f"--connect: {alone}")
    return f"baseurl = {root}\n"


def _pipelines(driver: str) -> str:
    """Return the pipelines of the example, or of the how-to page of the forge."""
    if driver != "git":
        return (files("headgate.cli.scenario.forges") / f"{driver}.yaml").read_text()
    text = (files("headgate.cli") / "example" / "repositories" / "config" / "zuul.yaml").read_text()
    # Leave out the example's jobs; the caller appends those for the named repositories.
    return text.partition("- job:")[0]
