"""Implement `headgate encrypt`, and verify that the stored keys decrypt the secrets of a configuration."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import click

from headgate.adapters.keys import rsa
from headgate.adapters.keys.keystore import ENCRYPTED, KeyStore
from headgate.base.errors import UserError
from headgate.base.files import bytes_of, text_of
from headgate.cli.identity.pages import pages
from headgate.cli.keys.keys import run
from headgate.cli.settings import Settings
from headgate.config.files.checks import deep_plain
from headgate.config.files.source import MEANING
from headgate.config.layout import Layout
from headgate.config.model import ConfigError
from headgate.ports.secrets import SecretError

PLAIN_SIZE_MAX_BYTES = 1_000_000
_file = click.Path(path_type=Path, dir_okay=False, allow_dash=True)


@click.command()
@click.option("--config", metavar="FILE", help="The settings file.")
@click.option("--url", help="URL of Headgate's pages and API. Default: from the settings.")
@click.option("--tenant", help="The tenant; optional if there is only one, or with --public-key.")
@click.option("--project", help="The project of the secret; not needed with --public-key.")
@click.option(
    "--public-key",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="The project's public key, from `headgate keys show PROJECT` or the API; then no server is needed.",
)
@click.option("--secret-name", default="NAME", show_default=True, help="Name of the secret in the output.")
@click.option("--field-name", default="FIELD", show_default=True, help="Name of the value in the secret.")
@click.option("--infile", type=_file, default="-", help="File with the value to encrypt. Default: standard input.")
@click.option("--outfile", type=_file, default="-", help="File for the secret. Default: standard output.")
@click.option("--no-strip", is_flag=True, help="Keep white space at the end of the value.")
def command(
    config: str | None,
    url: str | None,
    tenant: str | None,
    project: str | None,
    public_key: Path | None,
    secret_name: str,
    field_name: str,
    infile: Path,
    outfile: Path,
    no_strip: bool,
) -> None:
    """Encrypt a value for a project, and print it as a secret for the project's configuration."""
    if public_key is not None:
        pem = text_of(public_key, errors="replace")
    elif project:
        at = pages(config, url)
        pem = at.text(f"{at.of(tenant)}/key/{quote(project)}.pub")
    else:
        raise click.UsageError("name the project with --project, or give --public-key FILE")
    plain = _plain(infile)
    try:
        # Editors and `echo` append a line break, which is hardly ever part of a password.
        pieces = rsa.encrypt(pem, plain if no_strip else plain.rstrip())
    except rsa.BadKey as error:
        raise UserError(f"{public_key or 'the response of the server'}: {error}") from error
    with click.open_file(str(outfile), "w") as out:
        out.write("\n".join(_secret(secret_name, field_name, pieces)) + "\n")


def _secret(name: str, field: str, pieces: list[str]) -> Iterator[str]:
    yield from ("- secret:", f"    name: {name}", "    data:", f"      {field}: {ENCRYPTED}")
    for piece in pieces:
        yield f"        - {piece}"


def _plain(file: Path) -> bytes:
    if str(file) != "-":
        return bytes_of(file)
    # In a terminal, prompt: the value is then neither echoed nor stored in the shell's history.
    if sys.stdin.isatty():
        found = click.prompt("Value to encrypt", hide_input=True, err=True)
        assert isinstance(found, str), "a prompt returns a string"
        return found.encode()
    plain = sys.stdin.buffer.read(PLAIN_SIZE_MAX_BYTES + 1)
    if len(plain) > PLAIN_SIZE_MAX_BYTES:
        raise UserError(f"standard input: a value may have at most {PLAIN_SIZE_MAX_BYTES:,} bytes")
    return plain


def unopenable(settings: Settings, layout: Layout) -> list[ConfigError]:
    """Return an error for each secret that the stored keys cannot decrypt; none without stored keys. Raise
    UserError."""
    url = settings.store_url
    file = url.removeprefix("sqlite:///")
    # Without stored keys, for instance on the machine of someone who only edits configuration, there is nothing to
    # check. Do not open a missing SQLite file, which would create it.
    if not settings.get("keystore", "password") or url == "memory:" or (file != url and not Path(file).exists()):
        return []

    async def body(keys: KeyStore, _: Settings) -> list[ConfigError]:
        wrong: list[ConfigError] = []
        for stanza in layout.singles["secret"].values():
            source = layout.source(stanza.source.project)
            try:
                await keys.opened(source.connection, source.name, deep_plain(stanza.body.get("data")))
            except SecretError as error:
                wrong.append(stanza.error(MEANING, f"the secret {stanza.name!r}: {error}", "data"))
        return wrong

    return run(settings, body, write=False)
