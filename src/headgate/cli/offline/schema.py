"""`headgate schema`: the configuration language as JSON Schema, for editors."""

from __future__ import annotations

import json

import click

from headgate.cli.terminal.say import say
from headgate.config.explain import schema


@click.command()
@click.option(
    "--tenants",
    is_flag=True,
    help="Print the schema of the tenant file; by default, that of the files in repositories.",
)
def command(tenants: bool) -> None:
    """Print the JSON Schema of configuration files, for editors that check YAML.

    \b
      headgate schema > zuul-schema.json
      # yaml-language-server: $schema=zuul-schema.json     (the first line of a file)

    Tell the language server of the tags, too: !override, !inherit (scalar, sequence and mapping) and
    !encrypted/pkcs1-oaep (scalar and sequence).
    """
    say(json.dumps(schema.tenants() if tenants else schema.files(), indent=2, ensure_ascii=False))
