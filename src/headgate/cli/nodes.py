"""Implement `headgate node` and `headgate image`: machines, the builds that wait for them, and machine images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import quote

import click

from headgate.cli.apicommands import common, show_answer, table
from headgate.cli.groups import CommandGroup
from headgate.cli.identity.pages import PageClient, pages
from headgate.cli.terminal.say import say

WHY_MAX_CHARS = 100


@click.group(name="node", cls=CommandGroup)
def node_commands() -> None:
    """Show the machines of builds, and which builds wait for machines and why; hold and delete machines."""


@node_commands.command(name="list")
@common
@click.option("--state", help="List only machines in this state.")
def list_nodes(config: str | None, url: str | None, tenant: str | None, form: str | None, state: str | None) -> None:
    """List machines, their states and their problems."""
    at = pages(config, url)
    # The API has no filter for states.
    found = [one for one in at.get(f"{at.of(tenant)}/nodes") if state in (None, one["state"])]
    rows = [
        (one["id"], one["label"], one["state"], one["state_time"], one["provider"], one["interface_ip"], _about(one))
        for one in found
    ]
    heads = ("NODE", "LABEL", "STATE", "SINCE", "PROVIDER", "ADDRESS", "ABOUT")
    show_answer(found, form, partial(table, heads, rows, "There are no machines.", WHY_MAX_CHARS))


def _about(node: dict[str, Any]) -> str:
    """Return one line about a machine: its next state, its comment, and what it waits for."""
    going = f"next: {node['next_state']}" if node.get("next_state") else ""
    return "; ".join(filter(None, (going, node.get("comment"), node.get("why"))))


@node_commands.group(name="request", cls=CommandGroup)
def request() -> None:
    """Show the builds that wait for machines or use them."""


@request.command(name="list")
@common
def list_requests(config: str | None, url: str | None, tenant: str | None, form: str | None) -> None:
    """List builds that wait for machines: their place in line, why they wait, and what was tried."""
    at = pages(config, url)
    found = at.get(f"{at.of(tenant)}/nodeset-requests")
    rows = [
        (one["uuid"], one["state"], one["position"], ",".join(one["labels"]), one["job_name"], _why(one))
        for one in found
    ]
    heads = ("REQUEST", "STATE", "PLACE", "LABELS", "JOB", "WHY")
    show_answer(found, form, partial(table, heads, rows, "No build waits for machines.", WHY_MAX_CHARS))


def _why(request: dict[str, Any]) -> str:
    since = f" (since {request['why_since']})" if request.get("why") and request.get("why_since") else ""
    tried = f"; tried: {'; '.join(request['tried'])}" if request.get("tried") else ""
    return f"{request.get('why') or ''}{since}{tried}"


@node_commands.command()
@common
@click.option("--reason", default="", help="The reason; shown with the machine.")
@click.option("--for", "seconds", type=click.IntRange(0), metavar="SECONDS",
              help="How long to hold it. The default and the maximum are those of autoholds.")  # fmt: skip
@click.argument("node")
def hold(
    config: str | None,
    url: str | None,
    tenant: str | None,
    form: str | None,
    reason: str,
    seconds: int | None,
    node: str,
) -> None:
    """Hold a machine: once its current build ends, no other build gets it. Works for machines that Headgate created and
    for machines in the executor's list. For a machine of the inventory, the error message names the command to use
    instead."""
    at = pages(config, url)
    _order(at, tenant, node, {"state": "hold", "comment": reason, "hold_expiration": seconds})
    say(f"{node} will be held once no build uses it.")


@node_commands.command()
@common
@click.option("--reason", default="", help="The reason, recorded with the action.")
@click.argument("node")
def delete(config: str | None, url: str | None, tenant: str | None, form: str | None, reason: str, node: str) -> None:
    """Delete a machine that Headgate created, even a held one, once no build uses it. For a machine of the inventory,
    the error message names the command to use instead."""
    at = pages(config, url)
    _order(at, tenant, node, {"state": "used", "comment": reason})
    say(f"{node} will be deleted once no build uses it.")


def _order(at: PageClient, tenant: str | None, node: str, body: dict[str, Any]) -> None:
    at.put(f"{at.of(tenant)}/nodes/{quote(node, safe='')}", body)


@node_commands.command(name="accounts")
@click.option("--config", metavar="FILE", help="The settings file.")
@click.option("--url", metavar="URL", help="URL of Headgate's pages and API. Default: from the settings.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_accounts(config: str | None, url: str | None, as_json: bool) -> None:
    """List the cloud accounts in which Headgate created machines, and their problems."""
    found = pages(config, url).get("/api/node-accounts")
    rows = [(one["id"], one["connection"], one["region"], str(len(one["nodes"])), _wrong(one)) for one in found]
    heads = ("ACCOUNT", "CONNECTION", "REGION", "MACHINES", "PROBLEM")
    show_answer(
        found,
        "json" if as_json else None,
        partial(table, heads, rows, "Headgate has not created any machines.", WHY_MAX_CHARS),
    )


def _wrong(account: dict[str, Any]) -> str:
    lacking = "not in the launcher's settings" if account["lacking"] else ""
    strange = f"machines of another installation: {', '.join(account['strange'])}" if account["strange"] else ""
    return "; ".join(filter(None, (lacking, strange)))


@node_commands.command()
@click.option("--config", metavar="FILE", help="The settings file.")
@click.option("--url", metavar="URL", help="URL of Headgate's pages and API. Default: from the settings.")
@click.option("--reason", default="", help="The reason, recorded with the action.")
@click.argument("account")
def forget(config: str | None, url: str | None, reason: str, account: str) -> None:
    """Delete the records of the machines of ACCOUNT, which must no longer be in the launcher's settings."""
    place = f"/api/node-accounts/{quote(account, safe='')}"
    pages(config, url).post(place, {"do": "forget", "reason": reason})
    say(f"Forgot {account}. If any machines are left there, delete them yourself.")


def _add_list(kind: str, about: Callable[[dict[str, Any]], str]) -> None:
    """Add the command that lists the providers, labels or flavors of the configuration."""

    @node_commands.command(name=f"{kind}s", help=f"List the {kind}s in a tenant's configuration.")
    @common
    def listed(config: str | None, url: str | None, tenant: str | None, form: str | None) -> None:
        at = pages(config, url)
        found = at.get(f"{at.of(tenant)}/{kind}s")
        rows = [(one["name"], one.get("canonical_name") or "", about(one)) for one in found]
        show_answer(found, form, partial(table, ("NAME", "CANONICAL NAME", "ABOUT"), rows, f"There are no {kind}s."))


def _attached(provider: dict[str, Any]) -> str:
    return ", ".join(one["name"] for one in provider["labels"])


_add_list("provider", _attached)
_add_list("label", lambda one: one.get("description") or "")
_add_list("flavor", lambda one: one.get("description") or "")


@click.group(name="image", cls=CommandGroup)
def image_commands() -> None:
    """Show machine images and where they are uploaded; build, validate, upload again and delete them."""


@image_commands.command(name="list")
@common
@click.argument("image", required=False)
def list_images(config: str | None, url: str | None, tenant: str | None, form: str | None, image: str | None) -> None:
    """List images, the artifacts built for each, and their uploads, newest first."""
    at = pages(config, url)
    found = [one for one in at.get(f"{at.of(tenant)}/images") if image in (None, one["name"])]
    rows = [row for one in found for row in _rows(one)]
    heads = ("IMAGE", "TYPE", "ARTIFACT", "BUILT", "UPLOAD", "AT", "STATE", "VALIDATED", "ABOUT")
    show_answer(found, form, partial(table, heads, rows, "There are no matching images.", WHY_MAX_CHARS))


def _rows(image: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each upload, for each artifact without uploads, and for an image without artifacts."""
    head, built = (image["name"], image["type"]), image.get("build_artifacts") or []
    if not built:
        yield *head, "", "", "", "", "", "", "not built yet" if image["type"] == "zuul" else ""
    for artifact in built:
        of = (*head, artifact["uuid"], artifact["timestamp"])
        if not artifact["uploads"]:
            yield *of, "", "", artifact["state"], "", "not uploaded"
        for one in artifact["uploads"]:
            valid = "yes" if one["validated"] else "no"
            yield *of, one["uuid"], one["endpoint_name"], one["state"], valid, one.get("why") or ""


@image_commands.command()
@common
@click.argument("image")
def build(config: str | None, url: str | None, tenant: str | None, form: str | None, image: str) -> None:
    """Run the jobs that build an image."""
    at = pages(config, url)
    at.post(f"{at.of(tenant)}/image/{quote(image, safe='')}/build", {})
    say(f"Requested a build of {image}.")


@image_commands.command(name="delete")
@common
@click.option("--upload", is_flag=True, help="ID names an upload: the artifact and its other uploads stay.")
@click.argument("id")
def delete_image(
    config: str | None, url: str | None, tenant: str | None, form: str | None, upload: bool, id: str
) -> None:
    """Delete an artifact and its uploads once no machine is being created from it. New machines then use the previous
    artifact."""
    at = pages(config, url)
    kind = "image-upload" if upload else "image-build-artifact"
    at.delete(f"{at.of(tenant)}/{kind}/{quote(id, safe='')}")
    say(f"{id} will be deleted once no machine is being created from it.")


@image_commands.command()
@common
@click.argument("upload")
def validate(config: str | None, url: str | None, tenant: str | None, form: str | None, upload: str) -> None:
    """Run the jobs that validate an upload again."""
    at = pages(config, url)
    at.post(f"{at.of(tenant)}/image-upload/{quote(upload, safe='')}/validate", {})
    say(f"Requested a validation of {upload}.")


@image_commands.command()
@common
@click.argument("upload")
def retry(config: str | None, url: str | None, tenant: str | None, form: str | None, upload: str) -> None:
    """Retry a failed upload."""
    at = pages(config, url)
    at.post(f"{at.of(tenant)}/image-upload/{quote(upload, safe='')}/upload", {})
    say(f"Requested a new attempt at the upload {upload}.")
