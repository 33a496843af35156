"""Which branches of a project carry configuration."""

from __future__ import annotations

import re2

from headgate.config.tenants import TenantProject


def included(source: TenantProject, branch: str) -> bool:
    """Of a config-project one branch; of others what the tenant file includes, or does not exclude."""
    if source.trusted:
        return branch == source.load_branch
    if source.include_branches:
        return any(re2.fullmatch(p, branch) for p in source.include_branches)
    return not any(re2.fullmatch(p, branch) for p in source.exclude_branches)
