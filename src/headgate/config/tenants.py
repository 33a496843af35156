"""Export the parts of the tenant file's parser and model that most modules need."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.config.files.source import STANDARD_PATHS
from headgate.config.operator.file import parse_tenant_file
from headgate.config.operator.model import ConfigErrors, Connection, Protection, Tenant, TenantFile, TenantProject

__all__ = [
    "STANDARD_PATHS",
    "ConfigErrors",
    "Connection",
    "Protection",
    "Tenant",
    "TenantFile",
    "TenantProject",
    "parse_tenant_file",
    "parse_tenants",
]


def parse_tenants(text: str, path: str, connections: Mapping[str, Connection]) -> dict[str, Tenant]:
    """Return the tenants by name, in the order of the file. Raise ConfigErrors if any of them cannot be loaded."""
    found = parse_tenant_file(text, path, connections)
    if found.refused:
        raise ConfigErrors(tuple(error for errors in found.refused.values() for error in errors))
    return found.tenants
