"""Build the files that `headgate init --connect` writes: settings, a tenant file and configuration for existing
repositories."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from importlib.resources import files
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
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+/-]{0,199}")
_WORDS = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")


class ConnectedForge(NamedTuple):
    """Describe how one kind of forge is connected."""

    connection: str
    """Name of the connection, as pipelines use it."""
    settings: str
    """Lines of the connection's section, with {server} and {secret} to fill in."""
    variables: tuple[str, ...] = ()
    """Environment variables that must be set."""
    page: str = ""
    """Page of the how-to in the documentation."""
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
SETTINGS = """\
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
# Encrypts the keys of projects. Keep a copy: without it no secret can be opened.
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
        # What is gated; their own zuul.yaml or .zuul.yaml counts as proposed.
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
    description: The tests of the change's own project, merged with everything ahead of the change.
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
QUEUE = "\n- queue:\n    name: integrated\n"
TEST = """\
#!/bin/sh
# How a repository is tested. Say it here for all, or give each its own job.
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
    """Hold the files to write, and the steps that are left to do."""

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
        raise UserError(f"name the repositories to gate, such as: headgate init --connect {url} team/api team/app")
    for name in names:
        # Names become paths, patterns and YAML, so only harmless characters are allowed.
        if not _NAME.fullmatch(name) or ".." in name or name.endswith("/"):
            raise UserError(f"{name!r} is not a name of a repository below {url}, such as team/api")
    forge = FORGES[driver]
    lines = forge.settings.format(server=split.netloc, url=url.rstrip("/"), secret=secrets.token_urlsafe(32))
    lines += _root(url, split, driver) if driver != "git" else ""
    settings = SETTINGS.format(
        connection=forge.connection, driver=driver, lines=lines, password=secrets.token_urlsafe(32)
    )
    projects = "\n".join(f"          - {_text(name)}" for name in names)
    pipelines = _pipelines(driver)
    jobs = JOBS.format(
        # `re.escape` writes `\-`, which is right and reads badly in a file for people.
        pattern="|".join(re.escape(name).replace("\\-", "-") for name in names),
        queue="" if "- queue:" in pipelines else QUEUE,
    )
    return ConnectedFiles(
        settings,
        TENANTS.format(connection=forge.connection, projects=projects),
        {"zuul.yaml": pipelines.rstrip() + "\n" + jobs, "jobs/test": TEST},
        [f"export {name}=…    # see docs/how-to/{forge.page}.md" for name in forge.variables],
    )


def _text(name: str) -> str:
    """Return a name as a YAML string: unquoted, some names, such as 2048 and null, would be other values."""
    return f'"{name}"' if name[0].isdigit() or name.lower() in _WORDS else name


def _split(url: str) -> SplitResult:
    try:
        # `%(` would be read as a variable in the settings, and a leading dash as an option by git.
        if not url.isprintable() or url.startswith("-") or "%(" in url:
            raise ValueError(f"{url!r} is not an address of a git server or a forge")
        return urlsplit(url)
    except ValueError as error:
        raise UserError(f"--connect {url}: {error}") from error


def _root(url: str, split: SplitResult, driver: str) -> str:
    """Return the `baseurl` line for a forge that is not at the root of https://SERVER. Raise UserError."""
    if not split.netloc:
        raise UserError(f"--connect {url}: {driver} is at a URL such as https://{driver}.example.com")
    root = address("--connect", url)
    if root == f"https://{split.netloc}":
        return ""
    if split.hostname in HOSTS or not FORGES[driver].roots:
        alone = f"name the server alone, https://{split.netloc}, and repositories as there, such as team/api"
        raise UserError(f"--connect {url}: {alone}")
    return f"baseurl = {root}\n"


def _pipelines(driver: str) -> str:
    """Return the pipelines of the example, or of the how-to page of the forge."""
    if driver != "git":
        return (files("headgate.cli.scenario.forges") / f"{driver}.yaml").read_text()
    text = (files("headgate.cli") / "example" / "repositories" / "config" / "zuul.yaml").read_text()
    # Jobs of the example are left out; those for the named repositories follow.
    return text.partition("- job:")[0]
