"""Provide a tenant of a few projects, and layouts made from text, for tests of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import dedent

from headgate.config.definitions import Branches
from headgate.config.dynamic import TenantLayouts
from headgate.config.layout import Layout
from headgate.config.operator.file import parse_tenant_file
from headgate.config.operator.model import Connection, Tenant
from headgate.config.parse import ParseCache

HOST = "git.acme"
CONNECTIONS = {
    "forge": Connection("forge", HOST),
    "other": Connection("other", "git.other"),
    "review": Connection("review", "review.acme", "gerrit"),
    "hub": Connection("hub", "github.example", "github"),
    "lab": Connection("lab", "gitlab.example", "gitlab"),
    "dist": Connection("dist", "pagure.example", "pagure"),
    "aws": Connection("aws", "", "aws"),
    "stack": Connection("stack", "", "openstack"),
    "racks": Connection("racks", "", "static"),
    "kube": Connection("kube", "", "kubernetes"),
    "mail": Connection("mail", "mail.example", "smtp"),
    "bus": Connection("bus", "", "queue"),
    "shed": Connection("shed", "", "inventory"),
}
TENANTS = """
- tenant:
    name: acme
    source:
      forge:
        config-projects: [ops]
        untrusted-projects: [app, lib]
"""
BASE = """
- pipeline:
    name: gate
    manager: dependent
    post-review: true
    trigger: {forge: [{event: change-approved}]}
    success: {forge: {land: true}}
- pipeline:
    name: check
    manager: independent
    trigger: {forge: [{event: change-proposed}]}
- job: {name: base, parent: null, run: base.yaml}
"""
Files = Mapping[str, str | Mapping[str, str]]
"""Map `project` or `project@branch` to the text of its zuul.yaml, or to path -> text."""


def tenant(text: str = TENANTS) -> Tenant:
    found = parse_tenant_file(dedent(text), "tenants.yaml", CONNECTIONS)
    assert not found.refused, found.refused
    return next(iter(found.tenants.values()))


def texts(acme: Tenant, files: Files) -> dict[str, dict[str, dict[str, str]]]:
    found: dict[str, dict[str, dict[str, str]]] = {}
    for where, content in files.items():
        name, _, branch = where.partition("@")
        project = acme.find(name)
        assert project is not None, name
        paths = {"zuul.yaml": content} if isinstance(content, str) else content
        found.setdefault(project.project, {})[branch or "master"] = {p: dedent(text) for p, text in paths.items()}
    return found


def branches(acme: Tenant, files: Files, cache: ParseCache | None = None) -> Branches:
    cache = cache or ParseCache()
    return {
        project: {branch: cache.parse(acme.by_canonical[project], branch, found) for branch, found in of.items()}
        for project, of in texts(acme, files).items()
    }


def layouts(files: Files, tenants: str = TENANTS) -> TenantLayouts:
    acme, cache = tenant(tenants), ParseCache()
    return TenantLayouts.of(acme, branches(acme, {"ops": BASE, **files}, cache), cache)


def layout(files: Files, tenants: str = TENANTS) -> Layout:
    return layouts(files, tenants).landed
