"""The command line.  Commands are imported when they are used, so that `headgate --help` is quick."""

from __future__ import annotations

import resource
import sys
from typing import ClassVar

import click

from headgate import __version__
from headgate.base.errors import UserError
from headgate.cli.groups import LazyGroup

SECTIONS = {
    "Start here": {
        "demo": ("headgate.cli.scenario.command:command", "A gate at work on four small repositories."),
        "init": ("headgate.cli.init:command", "Write an example configuration, with comments."),
        "run": ("headgate.cli.launch.command:command", "Start everything in one process."),
    },
    "Check a configuration": {
        "check": ("headgate.cli.check.command:command", "Check a configuration whole, without a server."),
        "freeze": ("headgate.cli.offline.freeze:command", "Print the jobs a change would run."),
        "explain": ("headgate.cli.offline.explain:command", "Say where each attribute of a job comes from."),
        "try": ("headgate.cli.tryjob.command:command", "Run one job on files as they are, before anything is pushed."),
        "schema": ("headgate.cli.offline.schema:command", "Print JSON Schema of configuration files, for editors."),
        "lsp": ("headgate.cli.editor.command:command", "Serve an editor: errors while you type, what a job comes to."),
        "encrypt": ("headgate.cli.keys.encrypt:command", "Encrypt a value that only a project's jobs can open."),
    },
    "Propose and approve (plain git)": {
        "propose": ("headgate.cli.propose:propose", "Propose the commit that is checked out."),
        "withdraw": ("headgate.cli.propose:withdraw", "Withdraw a proposed change."),
        "approve": ("headgate.cli.approve:approve", "Approve a proposed change, by pushing its approval."),
        "recheck": ("headgate.cli.approve:recheck", "Have a change tested again, by pushing a ref that asks for it."),
        "hook": ("headgate.cli.hook:hook", "Print or install the hook for git servers."),
    },
    "See what happens": {
        "status": ("headgate.cli.status:command", "Show the queues, live."),
        "builds": ("headgate.cli.query:builds", "List builds, under way and ended."),
        "build-info": ("headgate.cli.query:build_info", "Show one build, its log, what it left."),
        "buildsets": ("headgate.cli.query:buildsets", "List buildsets, under way and ended."),
        "job-graph": ("headgate.cli.query:job_graph", "Show the jobs of a branch in a pipeline."),
        "freeze-job": ("headgate.cli.query:freeze_job", "Show what a job comes to on a branch in a pipeline."),
        "components": ("headgate.cli.components:command", "The processes that take part; pause or stop them."),
        "actions": ("headgate.cli.control:actions", "Show what was done by hand: who, what, why."),
    },
    "Intervene": {
        "enqueue": ("headgate.cli.control:enqueue", "Put a change into a pipeline."),
        "dequeue": ("headgate.cli.control:dequeue", "Take a change out of a pipeline."),
        "enqueue-ref": ("headgate.cli.control:enqueue_ref", "Put a branch, tag or other ref into a pipeline."),
        "dequeue-ref": ("headgate.cli.control:dequeue_ref", "Take a ref out of a pipeline."),
        "promote": ("headgate.cli.control:promote", "Move changes to the head of their queue."),
        "cancel": ("headgate.cli.control:cancel", "Stop one build."),
        "rerun": ("headgate.cli.control:rerun", "Run one failed build once more."),
        "close": ("headgate.cli.orders:close", "Let nothing land from a pipeline until it is opened."),
        "open": ("headgate.cli.orders:open_again", "Let changes land from a pipeline again."),
        "autohold": ("headgate.cli.autohold:command", "Keep what builds used that fail, to look at."),
        "autohold-list": ("headgate.cli.autohold:listing", "As `autohold list`."),
        "autohold-info": ("headgate.cli.autohold:show", "As `autohold show`."),
        "autohold-delete": ("headgate.cli.autohold:delete", "As `autohold delete`."),
        "manage-events": ("headgate.cli.query:manage_events", "Let what happens in a tenant wait, or go on."),
        "reconfigure": ("headgate.cli.control:reconfigure", "Read the configuration of projects anew."),
        "quarantine": ("headgate.cli.quarantine.command:command", "What was set aside because handling it failed."),
        "reports": (
            "headgate.cli.quarantine.reports:command",
            "What is told by mail, webhook, chat: what waits, what failed.",
        ),
    },
    "Machines and images": {
        "node": ("headgate.cli.nodes:command", "Machines: what there is, who waits and why; hold, take away."),
        "node-list": ("headgate.cli.query:node_list", "List machines that builds have."),
        "nodeset-request-list": ("headgate.cli.query:nodeset_request_list", "List builds that wait for machines."),
        "image": ("headgate.cli.artifacts:command", "Images that jobs build: what there is, and where; build, delete."),
    },
    "Queues and inventory": {
        "queue": ("headgate.cli.queue.command:command", "Queues of messages: serve them, look at them, steer workers."),
        "worker": ("headgate.cli.queue.worker:command", "Run jobs on the messages of queues."),
        "inventory": (
            "headgate.cli.inventory.command:command",
            "Machines and other objects: serve, list, change, watch.",
        ),
    },
    "Run as several processes": {
        "scheduler": ("headgate.cli.launch.command:scheduler", "Start a scheduler."),
        "merger": ("headgate.cli.launch.command:merger", "Start a merger."),
        "executor": ("headgate.cli.launch.command:executor", "Start an executor."),
        "launcher": ("headgate.cli.launch.command:launcher", "Start a launcher."),
        "web": ("headgate.cli.launch.command:web", "Start the pages and the API."),
        "fingergw": ("headgate.cli.launch.command:fingergw", "Serve live logs over finger."),
    },
    "Keep it running": {
        "ansible": ("headgate.cli.ansible:command", "Versions of Ansible that jobs may ask for: install, list."),
        "keys": (
            "headgate.cli.keys.command:command",
            "Keys of projects: show, export, import, rotate, retire, delete.",
        ),
        "prune": ("headgate.cli.prune:command", "Remove old logs, artifacts and history, as the settings say."),
        "store": ("headgate.cli.store.command:command", "The whole tree: to a file, from a file, or gone."),
        "map": ("headgate.cli.map:command", "What is kept where: reference, live tree, check."),
    },
    "Install": {
        "completion": ("headgate.cli.completion:command", "Print the completion script of a shell."),
        "man": ("headgate.cli.pages.man:command", "Write manual pages, one for each command."),
        "docs": ("headgate.cli.pages.command:command", "Write the generated reference pages."),
    },
}
"""Title -> name of a command -> where it is, and what it does."""
COMMANDS = {name: row for rows in SECTIONS.values() for name, row in rows.items()}
"""Name -> where it is, and what it does."""


class HeadgateCommands(LazyGroup):
    later: ClassVar = {name: where for name, (where, _) in COMMANDS.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which `--help` shows them."""
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each purpose; all have one column for the names."""
        width = max(map(len, COMMANDS))
        for title, rows in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), doc) for name, (_, doc) in rows.items()])


@click.command(cls=HeadgateCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="headgate")
@click.option("--url", help="Where Headgate's pages are, for every command that asks them.")
@click.option("--tenant", help="The tenant that is meant, where a command names none.")
@click.option("--format", type=click.Choice(["text", "json"]), help="The form of what commands print that ask the API.")
@click.option(
    "--use-config", metavar="NAME", help="A profile: url, tenant and auth_token of ~/.config/headgate/client.conf."
)
def group(url: str | None, tenant: str | None, format: str | None, use_config: str | None) -> None:
    """Headgate keeps the heads of your branches green."""


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # keys are in memory
    try:
        group()
    except UserError as error:
        click.echo(f"headgate: {error}", err=True)
        sys.exit(error.status)
