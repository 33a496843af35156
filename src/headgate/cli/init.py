"""`headgate init`: an example configuration, with comments."""

from __future__ import annotations

import secrets
from pathlib import Path

import click

from headgate.base.errors import UserError

SETTINGS = """\
# Headgate's settings. Relative paths are relative to this file.

[scheduler]
# Tenants, and the repositories that belong to them.
tenant_config = tenants.yaml
# Everything Headgate keeps: its store, history, logs, copies of repositories.
state_dir = state

[connection local]
# The directory (or ssh:// or https:// URL) the repositories are in.
driver = git
baseurl = repositories

[keystore]
# Encrypts the keys with which projects encrypt their secrets. Keep a copy: without it no secret can be opened.
password = PASSWORD

[web]
port = 9000
"""

TENANTS = """\
# One tenant is one set of repositories and pipelines.
- tenant:
    name: example
    source:
      local:
        # Pipelines, base jobs and their scripts. Changes here count once they have landed.
        config-projects:
          - config
        # Repositories that are gated; their own zuul.yaml counts as proposed.
        untrusted-projects:
          - hello
"""


@click.command()
@click.argument("directory", default=".", type=click.Path(file_okay=False, path_type=Path))
def command(directory: Path) -> None:
    """Write headgate.conf and tenants.yaml, with comments, into DIRECTORY (default: here)."""
    settings = SETTINGS.replace("PASSWORD", secrets.token_urlsafe(32))
    files = {"headgate.conf": settings, "tenants.yaml": TENANTS}
    for name in files:
        if (directory / name).exists():
            raise UserError(f"{directory / name} is there already; nothing was written")
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).touch(0o600 if text is settings else 0o666)
        (directory / name).write_text(text)
    click.echo(f"Wrote {directory / 'headgate.conf'} and {directory / 'tenants.yaml'}.")
    click.echo("Put your repositories where baseurl says, name them in tenants.yaml, then: headgate run")
