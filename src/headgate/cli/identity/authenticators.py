"""Build the authenticators, which verify tokens, from the settings."""

from __future__ import annotations

from headgate.adapters.identity.tokens import Authenticator, authenticator
from headgate.adapters.identity.trust import trusting
from headgate.cli.identity.credentials import authorities
from headgate.cli.settings import Settings


def authenticators(settings: Settings) -> list[Authenticator]:
    """Return the authenticators of the sections `[auth NAME]`, and start to fetch the keys of their providers. Raise
    UserError."""
    trust = trusting(*authorities(settings)) if settings.authenticators else None
    found = [authenticator(name, section, settings.path, trust) for name, section in settings.authenticators.items()]
    for one in found:
        if one.provider is not None:
            one.provider.refresh()
    return found
