"""Define the command line. Commands are imported when they are used, so that `headgate --help` is quick."""

from __future__ import annotations

import errno
import os
import resource
import sys
from typing import ClassVar

import click

from headgate import __version__
from headgate.base.errors import UserError
from headgate.base.texts import visible
from headgate.cli.groups import LazyGroup
from headgate.cli.terminal.say import say

SECTIONS = {
    "Start here": {
        "demo": ("headgate.cli.scenario.demo:command", "Show a gate at work on four small repositories."),
        "init": ("headgate.cli.init:command", "Write an example configuration, with comments."),
        "run": ("headgate.cli.launch.run:command", "Start everything in one process."),
    },
    "Check a configuration": {
        "check": ("headgate.cli.check.check:command", "Check a complete configuration, without a server."),
        "freeze": ("headgate.cli.offline.freeze:command", "Print the jobs that a change would run."),
        "explain": ("headgate.cli.offline.explain:command", "Show where each attribute of a job comes from."),
        "try": ("headgate.cli.tryjob:command", "Run one job on your files, before you push."),
        "schema": (
            "headgate.cli.pages.exports:json_schema",
            "Print the JSON Schema of configuration files, for editors.",
        ),
        "lsp": ("headgate.cli.editor.lsp:command", "Serve editors: show errors while you type, explain jobs."),
        "encrypt": ("headgate.cli.keys.secrets:command", "Encrypt a value that only a project's jobs can decrypt."),
    },
    "Propose and approve (plain git)": {
        "propose": ("headgate.cli.proposals:propose", "Propose the commit that is checked out."),
        "withdraw": ("headgate.cli.proposals:withdraw", "Withdraw a proposed change."),
        "approve": ("headgate.cli.proposals:approve", "Approve a proposed change, by pushing its approval."),
        "recheck": ("headgate.cli.proposals:recheck", "Test a change again, by pushing a ref that requests it."),
        "hook": ("headgate.cli.hook:hook", "Print or install the hook for git servers."),
    },
    "See what happens": {
        "status": ("headgate.cli.status:command", "Show the queues, live."),
        "builds": ("headgate.cli.query:builds", "List running and finished builds."),
        "build-info": ("headgate.cli.query:build_info", "Show one build, its log and its artifacts."),
        "buildsets": ("headgate.cli.query:buildsets", "List running and finished buildsets."),
        "job-graph": ("headgate.cli.query:job_graph", "Show the jobs of a branch in a pipeline."),
        "freeze-job": ("headgate.cli.query:freeze_job", "Show a frozen job of a branch in a pipeline."),
        "components": ("headgate.cli.components:command", "Show the running processes; pause or stop them."),
        "actions": ("headgate.cli.control:actions", "Show manual actions: who, what, why."),
    },
    "Intervene": {
        "enqueue": ("headgate.cli.control:enqueue", "Put a change into a pipeline."),
        "dequeue": ("headgate.cli.control:dequeue", "Remove a change from a pipeline."),
        "enqueue-ref": ("headgate.cli.control:enqueue_ref", "Put a branch, tag or other ref into a pipeline."),
        "dequeue-ref": ("headgate.cli.control:dequeue_ref", "Remove a ref from a pipeline."),
        "promote": ("headgate.cli.control:promote", "Move changes to the head of their queue."),
        "cancel": ("headgate.cli.control:cancel", "Stop one build."),
        "rerun": ("headgate.cli.control:rerun", "Run one failed build again."),
        "close": ("headgate.cli.control:close", "Stop landing changes from a pipeline until you open it."),
        "open": ("headgate.cli.control:open_again", "Let changes land from a pipeline again."),
        "autohold": ("headgate.cli.autohold:command", "Keep the files and machines of failed builds for inspection."),
        "autohold-list": ("headgate.cli.autohold:listing", "Same as `autohold list`."),
        "autohold-info": ("headgate.cli.autohold:show", "Same as `autohold show`."),
        "autohold-delete": ("headgate.cli.autohold:delete", "Same as `autohold delete`."),
        "manage-events": ("headgate.cli.query:manage_events", "Pause or resume the event queues of a tenant."),
        "reconfigure": ("headgate.cli.control:reconfigure", "Reload the tenant file or the configuration of projects."),
        "quarantine": (
            "headgate.cli.quarantine:quarantine_commands",
            "Show, retry or drop events and changes set aside after errors.",
        ),
        "reports": (
            "headgate.cli.quarantine:reports_commands",
            "Show, retry or drop reports by mail, webhook and chat.",
        ),
    },
    "Machines and images": {
        "node": ("headgate.cli.nodes:node_commands", "Show machines and the builds that wait for them; hold, delete."),
        "node-list": ("headgate.cli.query:node_list", "List the machines that builds use."),
        "node-set-state": ("headgate.cli.query:node_set_state", "Hold or delete a machine."),
        "nodeset-request-list": ("headgate.cli.query:nodeset_request_list", "List builds that wait for machines."),
        "nodeset-request-delete": ("headgate.cli.query:nodeset_request_delete", "Cancel a request for machines."),
        "image": ("headgate.cli.nodes:image_commands", "Show images that jobs build; build, delete."),
    },
    "Queues and inventory": {
        "queue": ("headgate.cli.queue.queue:command", "Serve and inspect message queues, control workers."),
        "worker": ("headgate.cli.queue.worker:command", "Run jobs on the messages of queues."),
        "inventory": (
            "headgate.cli.inventory.inventory:command",
            "Serve, list, change and watch machines and other objects.",
        ),
    },
    "Run as several processes": {
        "scheduler": ("headgate.cli.launch.run:scheduler", "Start a scheduler."),
        "merger": ("headgate.cli.launch.run:merger", "Start a merger."),
        "executor": ("headgate.cli.launch.run:executor", "Start an executor."),
        "launcher": ("headgate.cli.launch.run:launcher", "Start a launcher."),
        "web": ("headgate.cli.launch.run:web", "Start the pages and the API."),
        "fingergw": ("headgate.cli.launch.run:fingergw", "Serve live logs over finger."),
    },
    "Keep it running": {
        "ansible": ("headgate.cli.ansible:command", "Install and list the Ansible versions that jobs request."),
        "keys": (
            "headgate.cli.keys.keys:command",
            "Show, export, import, rotate, retire and delete project keys.",
        ),
        "prune": (
            "headgate.cli.launch.retention:command",
            "Remove logs, artifacts and history older than the settings allow.",
        ),
        "store": ("headgate.cli.store.store:command", "Export, import or delete the whole state."),
        "map": ("headgate.cli.store.store:map_commands", "Show the places of the store: reference, live tree, check."),
    },
    "Install": {
        "completion": ("headgate.cli.pages.exports:completion", "Print a completion script for a shell."),
        "man": ("headgate.cli.pages.exports:man", "Write manual pages, one for each command."),
        "docs": ("headgate.cli.pages.docs:command", "Write the generated pages: reference, manual and completion."),
    },
}
"""Title -> name of a command -> its place, `module:attribute`, and its summary for `--help`."""
COMMANDS = {name: row for rows in SECTIONS.values() for name, row in rows.items()}
"""Name of a command -> its place, `module:attribute`, and its summary for `--help`."""

OF_THE_MACHINE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EROFS), "cannot be written"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "cannot be accessed"),
}
"""Number of an error that is no defect of a command -> what is wrong with the file."""


class HeadgateCommands(LazyGroup):
    later: ClassVar = {name: where for name, (where, _) in COMMANDS.items()}
    extras: ClassVar = {"queue": "queues", "worker": "queues"}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of `--help`."""
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections; pad the names, so that the summaries of all sections align."""
        width = max(map(len, COMMANDS))
        for title, rows in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), doc) for name, (_, doc) in rows.items()])


@click.command(cls=HeadgateCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="headgate")
@click.option("--url", "--zuul-url", "url", help="URL of Headgate's pages and API, for all commands that call it.")
@click.option("--tenant", help="The tenant for commands that name none.")
@click.option(
    "--format",
    type=click.Choice(["text", "json"], case_sensitive=False),
    help="Output format of commands that call the API.",
)
@click.option(
    "--use-config",
    metavar="NAME",
    help="Take url, tenant and auth_token from this section of ~/.config/headgate/client.conf.",
)
@click.option("-c", "client_config", metavar="FILE", help="The profile file, instead of the default ones.")
@click.option(
    "--auth-token",
    metavar="TOKEN",
    help="Your token. All users of this machine can see it on the command line; set HEADGATE_TOKEN instead.",
)
@click.option(
    "--insecure", is_flag=True, help="Do not check the server's certificate. An impostor could then get your token."
)
@click.option("-v", "--verbose", is_flag=True, help="Show each call to the API on standard error.")
def group(**options: str | bool | None) -> None:
    """Headgate keeps the heads of your branches green."""


def main() -> None:
    # No core dumps: they would contain the project keys that the process has in memory.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    try:
        group()
    except UserError as error:
        say(f"headgate: {visible(str(error))}", err=True)
        sys.exit(error.status)
    except OSError as error:
        if error.errno not in OF_THE_MACHINE:
            raise
        where = visible(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else ""
        say(f"headgate: {where or 'the output'}: {OF_THE_MACHINE[error.errno]}: {error.strerror}", err=True)
        if not where:
            # What is left in the buffer would raise the error again when the program ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(UserError.status)
