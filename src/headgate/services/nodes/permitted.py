"""Select the listed machines that may be used: those that the settings of their connection permit."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from headgate.config.machines import FlatLabel, FlatProvider
from headgate.ports.cloud import MachineListing
from headgate.services.nodes.accounts import CloudAccount

log = logging.getLogger("headgate.launcher")


class Permitted:
    """Decide for one launcher which machines are permitted, and log each refusal once."""

    def __init__(self, accounts: Mapping[str, CloudAccount]) -> None:
        self._accounts = accounts
        self._logged = frozenset[str]()

    def of(self, providers: Mapping[str, Sequence[FlatProvider]]) -> dict[str, list[FlatProvider]]:
        """Return the providers of each tenant with the machines that may be used, as if the others were not listed."""
        refused = set[str]()
        found = {tenant: [self._with(one, refused) for one in several] for tenant, several in providers.items()}
        for why in sorted(refused - self._logged):
            log.warning("%s", why)
        self._logged = frozenset(refused)
        return found

    def _with(self, provider: FlatProvider, refused: set[str]) -> FlatProvider:
        permitted = []
        for host in provider.hosts:
            why = self._refusal(provider, host)
            if why:
                refused.add(f"provider {provider.name}: {why}")
            else:
                permitted.append(host)
        return replace(provider, hosts=tuple(permitted)) if len(permitted) < len(provider.hosts) else provider

    def _refusal(self, provider: FlatProvider, host: Mapping[str, Any]) -> str:
        account = self._accounts.get(provider.connection)
        # A driver without such a rule permits everything.
        if account is None or not isinstance(account.cloud, MachineListing):
            return ""
        return account.cloud.refusal(provider.projects, host)

    def why(self, provider: FlatProvider, label: FlatLabel) -> str:
        """Return why a provider, as it is configured, has no machine of a label; empty if it has one, or lists none."""
        refused = ""
        for host in provider.hosts:
            if label.name == host.get("label") or set(label.names) & set(_aliases(host)):
                why = self._refusal(provider, host)
                if not why:
                    return ""
                refused = refused or why
        return refused


def _aliases(host: Mapping[str, Any]) -> Sequence[str]:
    aliases = host.get("aliases") or ()
    return [aliases] if isinstance(aliases, str) else aliases
