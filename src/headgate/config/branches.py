"""Determine which branches of a project carry configuration, and digest its content."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from headgate.config.operator.model import TenantProject
from headgate.config.patterns import any_whole


def included(source: TenantProject, branch: str) -> bool:
    """Return whether configuration is read from the branch. Of a config-project, only `load_branch` is read. Of other
    projects, a branch is read unless it is always dynamic, ruled out by its forge, or not selected by include-branches
    or exclude-branches of the tenant file."""
    if source.trusted:
        return branch == source.load_branch
    if source.is_dynamic(branch) or source.is_kept_out(branch):
        return False
    if source.include_branches:
        return any_whole(source.include_branches, branch)
    return not any_whole(source.exclude_branches, branch)


def content_of(files: Mapping[str, str]) -> str:
    """Return a digest of configuration files, which is equal only for the same paths with the same texts."""
    return hashlib.sha256(msgspec.json.encode(sorted(files.items()))).hexdigest()[:16]
