"""Decide who may do what over HTTP, as the settings say."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from headgate.base.errors import UserError
from headgate.cli.identity.authenticators import authenticators
from headgate.cli.identity.token import operator_token
from headgate.cli.settings import FLAGS, Settings
from headgate.config.operator.model import TenantFile
from headgate.services.context import Context
from headgate.web.access import Access, Realm, Rules
from headgate.web.login.sessions import LoginSessions

USUAL_PORTS = {"http": 80, "https": 443}
"""Scheme of an origin -> the port that browsers leave out."""


def access_of(settings: Settings, file: Callable[[], TenantFile], context: Context | None = None) -> Access:
    """Return who may do what; `context`: of the web, where people log in.  Raise UserError."""
    realms = []
    for found in authenticators(settings):
        said = settings.authenticators[found.name]
        override, default = (FLAGS[said.get(o, "false").lower()] for o in ("allow_authz_override", "default"))
        realms.append(Realm(found, said.get("realm") or said["client_id"], override, default))

    def rules() -> Rules:
        now = file()
        return Rules(now.rules, now.roles, now.api_root)

    sessions = None
    if context is not None and any(realm.authenticator.provider for realm in realms):
        sessions = LoginSessions(context, settings.get("web", "root"), int(settings.number("web", "login_max")))
    figures_open = settings.get("web", "metrics") == "everybody"
    return Access(operator_token(settings), realms, rules, figures_open, sessions)


def dashboards_of(settings: Settings) -> frozenset[str]:
    """Return the origins of dashboards on other servers, as browsers write them. Raise UserError."""
    return frozenset(_origin(said, settings) for said in settings.get("web", "dashboards").split())


def _origin(said: str, settings: Settings) -> str:
    """Raise UserError."""
    try:
        parts = urlsplit(said)
        port = f":{parts.port}" if parts.port not in (None, USUAL_PORTS.get(parts.scheme)) else ""
    except ValueError:
        parts, port = urlsplit(""), ""
    host = parts.hostname or ""
    if parts.scheme not in USUAL_PORTS or not host or parts.path.strip("/") or parts.query or "@" in parts.netloc:
        raise UserError(
            f"{settings.path}: [web] dashboards: {said!r} is no origin; give scheme and host: https://zuul.example"
        )
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}"
