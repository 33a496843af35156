"""A connection to Pagure, as in the settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.adapters.forges.accounts import TRUE, OnTheWeb, address, host_of
from headgate.base.errors import UserError

PUBLIC = "pagure.io"
_FORKS, _FORK = "forks/", "fork/"
"""Pagure calls a fork `forks/USER/NAME`, and has its pages below `fork/USER/NAME`."""


@dataclass(frozen=True, slots=True)
class PagureAccount(OnTheWeb):
    """Describe where a Pagure is, and which account Headgate uses there."""

    name: str
    web: str = f"https://{PUBLIC}"
    canonical_hostname: str = PUBLIC
    clone: str = f"https://{PUBLIC}"
    """URL prefix of repositories, followed by the name of the project."""
    api_token: str = field(default="", repr=False)
    app_name: str = "Zuul"
    """Prefix of the names of its flags."""
    webhook_token: str = field(default="", repr=False)
    """Token of projects that are not listed in `webhook_tokens`; empty: Headgate requests their tokens from Pagure."""
    webhook_tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Name of a project -> its webhook token."""
    sshkey: str = ""
    verify_ssl: bool = True

    @property
    def api(self) -> str:
        """Return the URL of the REST API."""
        return f"{self.web}/api/0"

    def canonical(self, short: str) -> str:
        """See `OnTheWeb`: also accepts a fork as Pagure's pages name it."""
        name = f"{_FORKS}{short.removeprefix(_FORK)}" if short.startswith(_FORK) else short
        return f"{self.canonical_hostname}/{name}"

    def path(self, short: str) -> str:
        """Return the API's path of a project."""
        return f"/{_FORK}{short.removeprefix(_FORKS)}" if short.startswith(_FORKS) else f"/{short}"


def account(name: str, options: Mapping[str, str]) -> PagureAccount:
    """Return the account that a section of the settings describes. Raise UserError."""
    server = options.get("server") or PUBLIC
    web = address("baseurl", options.get("baseurl") or (server if "://" in server else f"https://{server}"))
    if not options.get("api_token"):
        raise UserError("it needs api_token: a token of the account that Headgate has there, of all projects")
    host = host_of(options.get("server") or web)
    clone = options.get("cloneurl") or (f"ssh://git@{host_of(web)}" if options.get("sshkey") else web)
    if clone.startswith(("http://", "https://")):
        clone = address("cloneurl", clone)
    everywhere, own = _tokens(options.get("webhook_token", ""))
    return PagureAccount(
        name,
        web,
        options.get("canonical_hostname") or host,
        clone.rstrip("/"),
        options["api_token"],
        options.get("app_name") or "Zuul",
        everywhere,
        own,
        options.get("sshkey", ""),
        options.get("verify_ssl", "true").lower() in TRUE,
    )


def _tokens(text: str) -> tuple[str, Mapping[str, str]]:
    """Return the token of all projects, and those of single projects: `TOKEN`, or `PROJECT=TOKEN` as often as
    needed."""
    everywhere, own = "", dict[str, str]()
    for part in re.split(r"[,\s]+", text.strip()):
        project, between, token = part.partition("=")
        if between and not (project and token):
            raise UserError("webhook_token: write a token, or PROJECT=TOKEN for each project, with commas between")
        if between:
            own[project] = token
        else:
            everywhere = part or everywhere
    return everywhere, own
