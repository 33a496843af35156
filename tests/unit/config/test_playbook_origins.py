"""Test which project, roles and secrets each playbook of any job has, against a second implementation of the rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.config.layout import build_layout
from headgate.config.model import FrozenJob, Playbook
from headgate.config.operator.model import Connection, Tenant
from headgate.config.parse import ParseCache
from headgate.testing.layouts import parse_tenants
from tests.tiers import share

TENANTS = """
- tenant:
    name: acme
    source:
      forge:
        config-projects: [ops, ansible-role-site]
        untrusted-projects: [app, lib]
"""
OPS = """
- pipeline: {name: gate, manager: dependent, post-review: true}
- pipeline: {name: check, manager: independent}
- job: {name: base, parent: null, pre-run: base-pre, post-run: base-post, secrets: [ops_key]}
"""
PROJECTS = ("ops", "ansible-role-site", "app", "lib")
CONFIG = PROJECTS[:2]
IMPLICIT = {"ops": "ops", "ansible-role-site": "site", "app": "app", "lib": "lib"}
PHASES = ("pre-run", "run", "post-run")


@dataclass(frozen=True)
class Job:
    """Represent one job, a child of the previous one."""

    name: str
    project: str
    phases: tuple[str, ...]
    roles: tuple[tuple[str, str], ...]
    secret: bool
    passes: bool
    checkout: str

    def stanza(self) -> dict[str, Any]:
        attributes: dict[str, Any] = {"name": self.name}
        attributes |= {phase: f"{self.name}-{phase}" for phase in self.phases}
        if self.roles:
            attributes["roles"] = [
                {"zuul": zuul, "name": name} if name else {"zuul": zuul} for zuul, name in self.roles
            ]
        if self.secret:
            attributes["secrets"] = [{"name": f"{self.name}_key", "secret": f"{self.project.replace('-', '_')}_key",
                                      "pass-to-parent": self.passes}]  # fmt: skip
        if self.checkout:
            attributes |= {"override-checkout": self.checkout}
            attributes["required-projects"] = [{"name": "ops", "override-checkout": self.checkout}]
        return attributes


roles = st.lists(st.tuples(st.sampled_from(PROJECTS), st.sampled_from(["", "tools", "../up"])), max_size=3).map(tuple)
chains = st.lists(
    st.builds(
        Job, st.just(""), st.sampled_from(PROJECTS), st.lists(st.sampled_from(PHASES), unique=True).map(tuple),
        roles, st.booleans(), st.booleans(), st.sampled_from(["", "master", "old"]),
    ),
    min_size=1, max_size=5,
)  # fmt: skip


def frozen(chain: list[Job], attached: dict[str, Any]) -> FrozenJob | None:
    """Return the last job of the chain, attached by `app`; None: it may not run."""
    tenant: Tenant = parse_tenants(TENANTS, "t", {"forge": Connection("forge", "g")})["acme"]
    texts: dict[str, list[Any]] = {name: [] for name in PROJECTS}
    for name in PROJECTS:
        texts[name].append({"secret": {"name": f"{name.replace('-', '_')}_key", "data": {"of": name}}})
    for parent, job in zip(["base", *(job.name for job in chain)], chain, strict=False):
        texts[job.project].append({"job": {**job.stanza(), "parent": parent}})
    texts["app"].append({"project": {"gate": {"jobs": [{chain[-1].name: attached}]}}})
    cache, parsed = ParseCache(), {}
    for name in PROJECTS:
        project = tenant.find(name)
        assert project is not None
        text = (OPS if name == "ops" else "") + yaml.safe_dump(texts[name])
        parsed[project.project] = {"master": cache.parse(project, "master", {"zuul.yaml": text})}
    graph = build_layout(tenant, parsed).freeze("gate", "g/app", "master")
    return graph.jobs[0] if graph.jobs and not graph.errors else None


@dataclass
class Oracle:
    """Check where roles and playbooks come from, for a chain of jobs with one variant each."""

    books: list[dict[str, Any]] = field(default_factory=list)
    lists: dict[bool, list[tuple[str, str, bool]]] = field(default_factory=lambda: {True: [], False: []})
    """Return those of config-projects, and all: (project, name, implicit)."""

    def variant(self, job: Job, *, attaching: bool = False) -> None:
        trusted = job.project in CONFIG
        own = [] if attaching else [(job.project, IMPLICIT[job.project], True)]
        for zuul, name in job.roles:
            role = (zuul, name or zuul, False)
            if (zuul, IMPLICIT[zuul], True) in own:
                own[own.index((zuul, IMPLICIT[zuul], True))] = role
            if role not in own:
                own.append(role)
        for of in (True, False) if trusted else (False,):
            self.lists[of] = self._added(self.lists[of], own)
        secrets = [(f"{job.name}_key", job.project)] if job.secret and job.phases else []
        if job.secret and job.passes:
            for book in self.books:
                if f"{job.name}_key" not in [name for name, _ in book["secrets"]]:
                    book["secrets"].append((f"{job.name}_key", job.project))
        for phase in job.phases:
            made = {"phase": phase, "project": job.project, "path": f"{job.name}-{phase}", "trusted": trusted,
                    "roles": self.lists[trusted], "secrets": list(secrets)}  # fmt: skip
            if phase == "run":
                self.books = [book for book in self.books if book["phase"] != "run"]
            self.books.append(made)

    @staticmethod
    def _added(known: list[Any], own: list[Any]) -> list[Any]:
        """A duplicate is replaced in its place; new ones go in front."""
        result = list(known)
        for at, (project, _, implicit) in enumerate(known):
            twins = [role for role in own if role[0] == project and not role[2]]
            if implicit and twins:
                result[at] = twins[0]
        mine = [r for r in own if r not in result and not (r[2] and any(k[0] == r[0] for k in result))]
        return mine + result

    def of(self, phase: str) -> list[dict[str, Any]]:
        found = [{k: v for k, v in book.items() if k != "phase"} for book in self.books if book["phase"] == phase]
        return found[::-1] if phase == "post-run" else found


def shown(book: Playbook) -> dict[str, Any]:
    assert book.branch == "master"
    return {
        "project": book.project.removeprefix("g/"),
        "path": book.path,
        "trusted": book.trusted,
        "roles": [(role.project.removeprefix("g/"), role.name, role.implicit) for role in book.roles],
        "secrets": [(secret.name, secret.project.removeprefix("g/")) for secret in book.secrets],
    }


@pytest.mark.heavy
@settings(max_examples=share(150))
@given(chains, roles, st.booleans())
def test_each_playbook_is_of_the_project_roles_and_secrets_that_the_rules_say(
    drawn: list[Job], attached: tuple[tuple[str, str], ...], runs: bool
) -> None:
    named = [Job(f"job{n}", *_rest(job)) for n, job in enumerate(drawn)]
    attaching = Job("own", "app", ("run",) if runs else (), attached, False, False, "")
    job = frozen(named, {k: v for k, v in attaching.stanza().items() if k != "name"})
    if job is None:
        return  # nothing runs
    oracle = Oracle()
    oracle.books = [
        {"phase": phase, "project": "ops", "path": path, "trusted": True, "roles": [("ops", "ops", True)],
         "secrets": [("ops_key", "ops")]}
        for phase, path in (("pre-run", "base-pre"), ("post-run", "base-post"))
    ]  # fmt: skip
    oracle.lists = {True: [("ops", "ops", True)], False: [("ops", "ops", True)]}
    for one in named:
        oracle.variant(one)
    oracle.variant(attaching, attaching=True)
    for phase, books in (("pre-run", job.pre_run), ("run", job.run), ("post-run", job.post_run)):
        assert [shown(book) for book in books] == oracle.of(phase), phase
    untrusted = [one for one in named if one.project not in CONFIG]
    for book in (*job.pre_run, *job.run, *job.post_run):
        if book.trusted:
            assert all(f"{role.project}".removeprefix("g/") in _named_by_config(named) for role in book.roles)
    gives = [one for one in untrusted if one.secret and (one.phases or one.passes)]
    assert job.post_review or not gives


def _named_by_config(chain: list[Job]) -> set[str]:
    """Return the projects whose roles a config-project requests, or that are config-projects."""
    mine = [job for job in chain if job.project in CONFIG]
    return {"ops", *(job.project for job in mine), *(zuul for job in mine for zuul, _ in job.roles)}


def _rest(job: Job) -> tuple[Any, ...]:
    return job.project, job.phases, job.roles, job.secret, job.passes, job.checkout
