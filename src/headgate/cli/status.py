"""`headgate status`: the queues, live, from a running Headgate."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote

import click
import msgspec
from rich.console import Console
from rich.live import Live

from headgate.base.errors import UserError
from headgate.cli.board import board, unreachable
from headgate.cli.settings import find, read
from headgate.web.shapes import StatusShape

INTERVAL_S = 0.5
TIMEOUT_S = 10.0
ALIVE_S = 1.0


@click.command()
@click.option("--config", metavar="FILE", help="The settings file.")
@click.option("--url", help="Where Headgate's pages are; by default as the settings say.")
@click.option("--tenant", help="By default the only one.")
@click.option("--once", is_flag=True, help="Print it once and end, as where there is no terminal.")
def command(config: str | None, url: str | None, tenant: str | None, once: bool) -> None:
    """Show the queues of a running Headgate."""
    base = address(config, url)
    token = token_of(config)
    place = f"{base}/api/tenant/{quote(the_tenant(base, token, tenant))}/status"
    console = Console(highlight=False)

    def look() -> StatusShape:
        return msgspec.convert(fetch(place, token=token), StatusShape)

    if once or not console.is_terminal:
        console.print(board(look()), soft_wrap=not console.is_terminal)
        return
    seen = board(look())
    with Live(seen, console=console, auto_refresh=False, screen=True) as live:
        try:
            while True:
                try:
                    shown = seen = board(look(), console.height)
                except UserError as error:  # it was there when we began: it may be started again
                    shown = unreachable(seen, str(error))
                live.update(shown, refresh=True)
                time.sleep(INTERVAL_S)
        except KeyboardInterrupt:
            return


def the_tenant(base: str, token: str, tenant: str | None) -> str:
    """The one that is named, else the only one.  Raises UserError."""
    if tenant is not None:
        return tenant
    names = [found["name"] for found in fetch(f"{base}/api/tenants", token=token)]
    if not names:
        raise UserError(f"{base} has no tenant that you may see")
    if len(names) > 1:
        raise UserError(f"there are several tenants; name one with --tenant: {', '.join(names)}")
    return str(names[0])


def token_of(config: str | None) -> str:
    """Of the environment, else of the settings, when they can be found."""
    if token := os.environ.get("HEADGATE_TOKEN", ""):
        return token
    try:
        return read(find(config)).get("web", "token")
    except UserError:
        if config:
            raise
        return ""


def address(config: str | None, url: str | None) -> str:
    """Of the pages, without a trailing slash."""
    if url:
        return url.rstrip("/")
    settings = read(find(config))
    root, port = settings.get("web", "root").rstrip("/"), settings.get("web", "port")
    host = settings.get("web", "listen_address")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    here = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    return root if root and not _alive(here) else here


def _alive(base: str) -> bool:
    """Whether pages are served there: those of this machine need neither a name nor a load balancer."""
    try:
        with urllib.request.urlopen(f"{base}/health/live", timeout=ALIVE_S) as answer:
            return bool(json.load(answer) == {"alive": True})
    except (OSError, ValueError):
        return False


def fetch(url: str, body: dict[str, Any] | None = None, token: str = "") -> Any:  # JSON
    """The answer; with a body it is a POST.  Raises UserError."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    request = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        try:
            said = json.load(error).get("detail", error.reason)
        except ValueError:
            said = error.reason
        raise UserError(f"{url}: {said}") from error
    except OSError as error:
        raise UserError(f"{url}: no Headgate answers there ({error}); is `headgate run` running?") from error
