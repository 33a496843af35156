"""Implement `headgate lsp`: start a language server for editors."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from headgate.adapters.git.command import GitError
from headgate.base.errors import UserError, needing
from headgate.cli.check.inspection import pipelines_of
from headgate.cli.editor.session import EditorSession
from headgate.cli.offline.othertrees import trees_below as below
from headgate.cli.offline.othertrees import work_trees_of
from headgate.cli.offline.reader import LoadedTenant, LoadedTenants, ReadingOptions, given
from headgate.cli.resources import connections
from headgate.cli.settings import find, read
from headgate.config.tenants import ConfigErrors


@click.command()
@given
@click.option(
    "--tree",
    "work_trees",
    multiple=True,
    metavar="[PROJECT=]DIR",
    help="Without --repos: a work tree that is edited; repeatable.  Default: the current one.",
)
def command(given: ReadingOptions, work_trees: tuple[str, ...]) -> None:
    """Serve an editor over standard input and output: errors while you type, definitions of jobs, and where they are.

    \b
    Editors start it by themselves; tell them the command, for files of YAML:
      headgate lsp --tenant-config tenants.yaml --repos DIR

    It knows work trees below DIR (or --tree) as they are being edited, and everything else as `headgate check` does.
    Where no tenant file is to be found, it checks the form of configuration files alone.
    """
    with needing("headgate lsp", "editor"):
        from headgate.cli.editor.server import Editor
    session, failure = _session(given, work_trees)
    Editor(session, failure).server.start_io()


def _session(given: ReadingOptions, work_trees: tuple[str, ...]) -> tuple[EditorSession, str]:
    """Open the session for the editor; when it can check only the form of files, return the reason."""
    try:
        found = given.load()
        pipelines = pipelines_of(found, complete=given.tenant is None)
        return EditorSession(found.tenants, _trees(given, found, work_trees), pipelines), ""
    except ConfigErrors as refused:
        return EditorSession({}, {}, None), "\n".join(error.render() for error in refused.errors)
    except (UserError, GitError) as error:
        return EditorSession({}, {}, None), str(error)


def _trees(given: ReadingOptions, found: LoadedTenants, work_trees: tuple[str, ...]) -> dict[str, Path]:
    """Map the projects of all tenants to their work trees. Raise UserError, GitError."""
    at: dict[str, Path] = {}
    for loaded in found.tenants.values():
        at |= below(loaded, given.repos) if given.repos is not None else _edited(given, loaded, work_trees)
    return at


def _edited(given: ReadingOptions, loaded: LoadedTenant, work_trees: tuple[str, ...]) -> dict[str, Path]:
    """Map projects to the given work trees, or to the one here. Raise UserError, GitError."""
    known = connections(read(find(given.config)))
    edited = asyncio.run(work_trees_of(work_trees or (".",), loaded, known, None))
    return {tree.source.project: tree.path for tree in edited}
