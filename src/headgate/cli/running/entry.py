"""Who may do what over HTTP, as the settings say."""

from __future__ import annotations

from collections.abc import Callable

from headgate.adapters.identity.tokens import authenticator
from headgate.cli.identity.token import operator_token
from headgate.cli.settings import FLAGS, Settings
from headgate.config.operator.model import TenantFile
from headgate.web.access import Access, Realm, Rules


def access_of(settings: Settings, file: Callable[[], TenantFile]) -> Access:
    """Raises UserError."""
    realms = []
    for name, said in settings.authenticators.items():
        found = authenticator(name, said, settings.path)
        override, default = (FLAGS[said.get(o, "false").lower()] for o in ("allow_authz_override", "default"))
        realms.append(Realm(found, said.get("realm") or said["client_id"], override, default))

    def rules() -> Rules:
        now = file()
        return Rules(now.rules, now.roles, now.api_root)

    return Access(operator_token(settings), realms, rules, settings.get("web", "metrics") == "everybody")
