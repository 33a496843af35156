"""The command line.  Commands are imported when they are used, so that `headgate --help` is quick."""

from __future__ import annotations

import importlib
import resource
import sys

import click

from headgate import __version__
from headgate.base.errors import UserError

COMMANDS = {
    "init": ("headgate.cli.init:command", "Write an example configuration, with comments."),
    "run": ("headgate.cli.launch.command:command", "Start everything in one process."),
    "scheduler": ("headgate.cli.launch.command:scheduler", "Start a scheduler."),
    "merger": ("headgate.cli.launch.command:merger", "Start a merger."),
    "launcher": ("headgate.cli.launch.command:launcher", "Start a launcher."),
    "fingergw": ("headgate.cli.launch.command:fingergw", "Serve live logs over finger."),
    "executor": ("headgate.cli.launch.command:executor", "Start an executor."),
    "web": ("headgate.cli.launch.command:web", "Start the pages and the API."),
    "check": ("headgate.cli.check.command:command", "Check a configuration whole, without a server."),
    "freeze": ("headgate.cli.offline.freeze:command", "Print the jobs a change would run."),
    "schema": ("headgate.cli.offline.schema:command", "Print JSON Schema of configuration files, for editors."),
    "explain": ("headgate.cli.offline.explain:command", "Say where each attribute of a job comes from."),
    "lsp": ("headgate.cli.editor.command:command", "Serve an editor: errors while you type, what a job comes to."),
    "ansible": ("headgate.cli.ansible:command", "Versions of Ansible that jobs may ask for: install, list."),
    "hook": ("headgate.cli.hook:hook", "Print or install the hook for git servers."),
    "try": ("headgate.cli.tryjob.command:command", "Run one job on files as they are, before anything is pushed."),
    "status": ("headgate.cli.status:command", "Show the queues, live."),
    "components": ("headgate.cli.components:command", "The processes that take part; pause or stop them."),
    "enqueue": ("headgate.cli.control:enqueue", "Put a change into a pipeline."),
    "dequeue": ("headgate.cli.control:dequeue", "Take a change out of a pipeline."),
    "cancel": ("headgate.cli.control:cancel", "Stop one build."),
    "rerun": ("headgate.cli.control:rerun", "Run one failed build once more."),
    "enqueue-ref": ("headgate.cli.control:enqueue_ref", "Put a branch, tag or other ref into a pipeline."),
    "dequeue-ref": ("headgate.cli.control:dequeue_ref", "Take a ref out of a pipeline."),
    "promote": ("headgate.cli.control:promote", "Move changes to the head of their queue."),
    "close": ("headgate.cli.orders:close", "Let nothing land from a pipeline until it is opened."),
    "open": ("headgate.cli.orders:open_again", "Let changes land from a pipeline again."),
    "reconfigure": ("headgate.cli.control:reconfigure", "Read the configuration of projects anew."),
    "actions": ("headgate.cli.control:actions", "Show what was done by hand: who, what, why."),
    "propose": ("headgate.cli.propose:propose", "Propose the commit that is checked out."),
    "withdraw": ("headgate.cli.propose:withdraw", "Withdraw a proposed change."),
    "approve": ("headgate.cli.approve:approve", "Approve a proposed change, by pushing its approval."),
    "recheck": ("headgate.cli.approve:recheck", "Have a change tested again, by pushing a ref that asks for it."),
    "autohold": ("headgate.cli.autohold:command", "Keep what builds used that fail, to look at."),
    "autohold-list": ("headgate.cli.autohold:listing", "As `autohold list`."),
    "autohold-info": ("headgate.cli.autohold:show", "As `autohold show`."),
    "autohold-delete": ("headgate.cli.autohold:delete", "As `autohold delete`."),
    "builds": ("headgate.cli.query:builds", "List builds, under way and ended."),
    "build-info": ("headgate.cli.query:build_info", "Show one build, its log, what it left."),
    "buildsets": ("headgate.cli.query:buildsets", "List buildsets, under way and ended."),
    "job-graph": ("headgate.cli.query:job_graph", "Show the jobs of a branch in a pipeline."),
    "freeze-job": ("headgate.cli.query:freeze_job", "Show what a job comes to on a branch in a pipeline."),
    "image": ("headgate.cli.artifacts:command", "Images that jobs build: what there is, and where; build, delete."),
    "node-list": ("headgate.cli.query:node_list", "List machines that builds have."),
    "node": ("headgate.cli.nodes:command", "Machines: what there is, who waits and why; hold, take away."),
    "nodeset-request-list": ("headgate.cli.query:nodeset_request_list", "List builds that wait for machines."),
    "manage-events": ("headgate.cli.query:manage_events", "Let what happens in a tenant wait, or go on."),
    "quarantine": ("headgate.cli.quarantine.command:command", "What was set aside because handling it failed."),
    "reports": (
        "headgate.cli.quarantine.reports:command",
        "What is told by mail, webhook, chat: what waits, what failed.",
    ),
    "encrypt": ("headgate.cli.keys.encrypt:command", "Encrypt a value that only a project's jobs can open."),
    "keys": ("headgate.cli.keys.command:command", "Keys of projects: show, export, import, rotate, retire, delete."),
    "queue": ("headgate.cli.queue.command:command", "Queues of messages: serve them, look at them, steer workers."),
    "inventory": ("headgate.cli.inventory.command:command", "Machines and other objects: serve, list, change, watch."),
    "worker": ("headgate.cli.queue.worker:command", "Run jobs on the messages of queues."),
    "prune": ("headgate.cli.prune:command", "Remove old logs, artifacts and history, as the settings say."),
    "store": ("headgate.cli.store.command:command", "The whole tree: to a file, from a file, or gone."),
    "map": ("headgate.cli.map:command", "What is kept where: reference, live tree, check."),
    "demo": ("headgate.cli.scenario.command:command", "A gate at work on four small repositories."),
    "docs": ("headgate.cli.pages.command:command", "Write the generated reference pages."),
}
"""Name -> where it is, and what it does."""


class HeadgateCommands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name][0].split(":")
        found = getattr(importlib.import_module(module), name)
        assert isinstance(found, click.Command), "the table names commands"
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, doc) for name, (_, doc) in COMMANDS.items()])


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
