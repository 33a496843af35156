"""Implement `headgate lsp`: start a language server for editors."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from headgate.adapters.git.command import GitError
from headgate.base.errors import UserError, needing
from headgate.cli.editor.session import EditorSession
from headgate.cli.offline.othertrees import trees_below as below
from headgate.cli.offline.othertrees import work_trees_of
from headgate.cli.offline.reader import LoadedTenant, LoadedTenants, ReadingOptions, given
from headgate.cli.resources import connections
from headgate.cli.settings import find, read
from headgate.config.operator.model import ConfigErrors


@click.command()
@given
@click.option(
    "--tree",
    "work_trees",
    multiple=True,
    metavar="[PROJECT=]DIR",
    help="Without --repos: a work tree that you edit; repeatable. Default: the current one.",
)
def command(given: ReadingOptions, work_trees: tuple[str, ...]) -> None:
    """Run a language server for editors, on standard input and output: it shows errors while you type, explains jobs,
    and finds their definitions.

    \b
    Configure your editor to start this command for YAML files:
      headgate lsp --tenant-config tenants.yaml --repos DIR

    For the work trees below DIR (or those of --tree), the server uses the unsaved text in the editor; it reads
    everything else like `headgate check`. Without a tenant file, it checks only the syntax of configuration files.
    """
    with needing("headgate lsp", "editor"):
        from headgate.cli.editor.server import Editor
    session, failure = _session(given, work_trees)
    Editor(session, failure).server.start_io()


def _session(given: ReadingOptions, work_trees: tuple[str, ...]) -> tuple[EditorSession, str]:
    """Return the editor session and, if it can check only the syntax of files, the reason."""
    try:
        found = given.load()
        complete = given.tenant is None and not found.refused
        return EditorSession(found.tenants, _trees(given, found, work_trees), complete=complete), ""
    except ConfigErrors as refused:
        return EditorSession({}, {}, complete=False), "\n".join(error.render() for error in refused.errors)
    except (UserError, GitError) as error:
        return EditorSession({}, {}, complete=False), str(error)


def _trees(given: ReadingOptions, found: LoadedTenants, work_trees: tuple[str, ...]) -> dict[str, Path]:
    """Return the work trees of the projects of all tenants. Raise UserError, GitError."""
    at: dict[str, Path] = {}
    for loaded in found.tenants.values():
        at |= below(loaded, given.repos) if given.repos is not None else _edited(given, loaded, work_trees)
    return at


def _edited(given: ReadingOptions, loaded: LoadedTenant, work_trees: tuple[str, ...]) -> dict[str, Path]:
    """Return the given work trees, or the current one, by project. Raise UserError, GitError."""
    known = connections(read(find(given.config)))
    edited = asyncio.run(work_trees_of(work_trees or (".",), loaded, known, None))
    return {tree.source.project: tree.path for tree in edited}
