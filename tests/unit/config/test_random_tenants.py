"""Test random tenants and chains of proposals: they load, freeze and differ, and equal a layout that is built from
scratch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate.config.dynamic import LayoutRequest, TenantLayouts
from headgate.config.explain import describe
from headgate.config.files.document import SecretClosed, revealed
from headgate.config.layout import Layout, build_layout
from headgate.config.model import FrozenGraph
from headgate.config.operator.model import Tenant
from headgate.config.parse import ParseCache
from tests.tiers import share

from .places import BASE, Files, branches, tenant, texts
from .test_incremental import essence

JOBS = ("unit", "lint", "base", "deploy", "noop", "nobody")
PROJECTS = ("ops", "more", "app", "lib", "site/ansible-role-x", "nowhere")
PLACES = ("ops", "more", "app", "app@stable", "app@dyn/1", "lib", "lib@stable", "lib@old", "site/ansible-role-x")
CONFIG = ("ops", "more")


class Keys:
    """Open values that begin with an even byte."""

    def open(self, project: str, chunks: Sequence[bytes]) -> str:
        if any(chunk[:1] and chunk[0] % 2 for chunk in chunks):
            raise SecretClosed("it is of another key")
        return b"".join(chunks).hex()


def one_of(*words: str) -> st.SearchStrategy[str]:
    return st.sampled_from(words)


def some(keys: Mapping[str, st.SearchStrategy[str]], most: int = 4) -> st.SearchStrategy[str]:
    """Draw `key: value` for some of these."""
    return st.lists(one_of(*keys), unique=True, max_size=most).flatmap(
        lambda names: st.tuples(*(keys[name].map(f"{name}: {{}}".format) for name in names)).map(", ".join)
    )


job = one_of(*JOBS)
ATTRIBUTES = {
    "run": one_of("a.yaml", "[a.yaml, {name: b.yaml, semaphores: one}]"),
    "pre-run": one_of("pre.yaml"),
    "post-run": one_of("[{name: post.yaml, cleanup: true}]"),
    "branches": one_of("stable", "[master, ^old]", "{regex: ^s, negate: true}"),
    "files": one_of("^src/", "!inherit ^doc/", "'(?!x)'"),
    "dependencies": one_of("unit", "[{name: lint, soft: true}]", "!inherit nobody", "[]"),
    "secrets": one_of("key", "[{name: login, secret: key, pass-to-parent: true}]", "open", "[a-b]"),
    "include-vars": one_of(
        "vars.yaml",
        "[{name: v.yaml, project: lib}, w.yaml]",
        "{name: v.yaml, zuul-project: true, use-ref: false, required: false}",
        "!override [{name: x.yaml, project: ops}]",
        "{name: x.yaml, project: nowhere}",
    ),
    "required-projects": one_of("[lib]", "[{name: app, override-checkout: stable}]", "!override []"),
    "roles": one_of("{zuul: lib}", "[{zuul: site/ansible-role-x, name: x}, {zuul: nowhere}]"),
    "nodeset": one_of("small", "{nodes: [{name: n, label: big}]}", "{alternatives: [small, large]}"),
    "timeout": one_of("-1", "30", "99999"),
    "pre-timeout": one_of("10", "60"),
    "attempts": one_of("0", "2"),
    "vars": one_of("{a: 1}", "!override {b: {c: 1}}"),
    "final": one_of("true", "false"),
    "abstract": one_of("true"),
    "protected": one_of("true"),
    "post-review": one_of("true"),
    "type": one_of("initializer", "reporter", "regular"),
    "image-build-name": one_of("debian"),
    "override-checkout": one_of("stable", "old"),
    "semaphores": one_of("one", "[{name: two, resources-first: true}]"),
    "attribute-control": one_of("{vars: {final: true}}"),
    "allowed-projects": one_of("[app, lib]"),
    "match-on-config-updates": one_of("false"),
    "voting": one_of("false"),
}
jobs_of = st.lists(
    job | st.tuples(job, some(ATTRIBUTES, 2)).map(lambda found: f"{{{found[0]}: {{{found[1]}}}}}"), max_size=3
).map(lambda found: f"[{', '.join(found)}]")
section = st.tuples(jobs_of, one_of("", ", fail-fast: true", ", debug: true", ", parameters: [{name: p}]")).map(
    lambda found: f"{{jobs: {found[0]}{found[1]}}}"
)
SECTIONS = {"gate": section, "check": section, "promote": section}
stanza = st.one_of(
    st.tuples(
        job, one_of("", "parent: null, ", "parent: base, ", "parent: unit, ", "parent: lint, "), some(ATTRIBUTES)
    ).map(lambda found: f"- job: {{name: {found[0]}, {found[1]}{found[2]}}}"),
    some(
        {
            "name": one_of("app", "lib", "^l.*", "nowhere"),
            "templates": one_of("[usual]", "[usual, gone]"),
            "queue": one_of("common", "lone"),
            "merge-mode": one_of("squash-merge"),
            "branches": one_of("stable", "^m"),
            "vars": one_of("{q: 1}"),
            **SECTIONS,
        }
    ).map(lambda found: f"- project: {{{found}}}"),
    some({**SECTIONS, "queue": one_of("common"), "vars": one_of("{t: 1}")}).map(
        lambda found: f"- project-template: {{name: usual, {found}}}"
    ),
    st.binary(min_size=1, max_size=2).map(
        lambda found: (
            f"- secret: {{name: key, data: {{p: !encrypted/pkcs1-oaep [{'YWJj' if found[0] % 2 else 'YmJj'}]}}}}"
        )
    ),
    one_of(
        "- secret: {name: key, data: {list: [!encrypted/pkcs1-oaep YmJj, a], deep: {a: !encrypted/pkcs1-oaep ZGVm}}}",
        "- secret: {name: open, data: {a: b}}",
        "- job: {name: unit, final: true}",
        "- job: {name: unit, protected: true}",
        "- secret: {name: open, oidc: {ttl: 60}}",
        "- nodeset: {name: small, nodes: [{name: a, label: big}]}",
        "- nodeset: {name: large, alternatives: [small, {nodes: [{name: '::1', label: big}]}]}",
        "- nodeset: {name: small, alternatives: [large]}",
        "- label: {name: big, image: debian, flavor: huge}",
        "- image: {name: debian, type: zuul, retain-count: 3, max-retain-count: 2}",
        "- image: {name: debian, type: zuul}",
        "- flavor: {name: huge}",
        "- section: {name: top, connection: aws, images: [debian], flavors: [{name: huge, final: true}], odd: 1}",
        "- section: {name: low, parent: top, flavors: [huge], images: [{name: debian, retain-count: 9}]}",
        "- section: {name: top, parent: low}",
        "- provider: {name: p, section: low, labels: [big], nodes: [{name: n, label: none}]}",
        "- queue: {name: common, type: per-branch}",
        "- semaphore: {name: one, max: 2}",
        "- pipeline: {name: promote, manager: supercedent, supercedes: check}",
        "- pipeline: {name: gate, manager: dependent, allow-parameters: true}",
        "- pragma: {implied-branch-matchers: true, implied-branches: [master, stable]}",
        "- pragma: {implied-branch-matchers: false}",
        "- nonsense: {}",
        "- [",
    ),
)
SOUND = {
    "app": """
- secret: {name: key, data: {list: [!encrypted/pkcs1-oaep YmJj, plain], deep: {a: !encrypted/pkcs1-oaep ZGVm}}}
- label: {name: big, image: debian, flavor: huge}
- image: {name: debian, type: zuul}
- flavor: {name: huge}
- nodeset: {name: small, nodes: [{name: a, label: big}]}
- job: {name: unit, run: a.yaml, secrets: key, include-vars: [a.yaml, {name: v.yaml, project: lib}], roles: {zuul: lib}}
- job: {name: lint, run: b.yaml, dependencies: [{name: unit, soft: true}], nodeset: small}
- project: {gate: {jobs: [unit, lint, base]}, check: {jobs: [lint, base]}}
""",
    "lib": """
- job: {name: child, parent: unit}
- job: {name: deploy, run: d.yaml, include-vars: {name: v.yaml, zuul-project: true}}
- project-template: {name: usual, gate: {jobs: [deploy, unit]}, check: {jobs: [deploy]}}
- project: {templates: [usual], gate: {jobs: [lint]}}
""",
    "site/ansible-role-x": "- project: {templates: [usual], check: {jobs: [base, deploy: {roles: {zuul: lib}}]}}\n",
}
"""Draw a valid configuration that has graphs."""


def files_of(place: str) -> st.SearchStrategy[str | dict[str, str]]:
    sound = SOUND.get(place.partition("@")[0], "")
    a_text = st.lists(stanza, max_size=3).map("\n".join)
    paths = ("zuul.yaml", "zuul.d/a.yaml", "zuul.d/sub/b.yaml", "ci/extra.yaml")
    return st.one_of(
        a_text.map(sound.__add__),
        st.just(sound or "[]"),
        a_text,
        st.fixed_dictionaries({}, optional=dict.fromkeys(paths, a_text.map(sound.__add__))),
    )


a_state = st.fixed_dictionaries(
    {place: files_of(place) for place in SOUND},
    optional={place: files_of(place) for place in PLACES if place not in SOUND},
)
a_proposal = st.lists(one_of(*PLACES), min_size=1, max_size=2, unique=True).flatmap(
    lambda places: st.fixed_dictionaries({place: files_of(place) for place in places})
)
SETTINGS = {
    "app": one_of(
        "", "include-provider-config: true", "always-dynamic-branches: ^dyn/", "configure-projects: [lib]",
        "shadow: [lib], allow-reporter-jobs: true", "implied-branch-matchers: true", "extra-config-paths: [ci/]",
    ),
    "lib": one_of("", "include: [job, project]", "exclude: secret", "exclude-branches: [old]", "load-branch: stable"),
}  # fmt: skip


@st.composite
def a_tenant_text(draw: st.DrawFn) -> str:
    of = {name: f"{name}: {{{value}}}" if (value := draw(found)) else name for name, found in SETTINGS.items()}
    settings = draw(some({"use-nodepool": one_of("false"), "default-parent": one_of("unit", "gone"),
                          "max-nodes-per-job": one_of("1"), "default-ansible-version": one_of("9")}))  # fmt: skip
    projects = f"[{of['app']}, {of['lib']}, site/ansible-role-x]"
    source = f"source: {{forge: {{config-projects: [ops, more], untrusted-projects: {projects}}}}}"
    return f"- tenant: {{name: acme, {settings + ', ' if settings else ''}{source}}}"


def a_tenant() -> st.SearchStrategy[Tenant]:
    return a_tenant_text().map(tenant)


def landed(files: Files) -> dict[str, str | Mapping[str, str]]:
    """The configuration contains everything that the tests need, whatever else it contains."""
    own = files.get("ops", "")
    return {**files, "ops": BASE + (own if isinstance(own, str) else "\n".join(own.values()))}


def graphs(acme: Tenant, layout: Layout) -> dict[tuple[str, str, str], FrozenGraph]:
    return {
        (pipeline, project.project, branch): layout.freeze(pipeline, project.project, branch, files=("zuul.yaml",))
        for pipeline in (*layout.pipelines, "gone")
        for project in acme.projects
        for branch in ("master", "stable", "dyn/1")
    }


def same_all_the_way(graph: FrozenGraph) -> None:
    """A graph stays the same when it is stored, and every secret in it is opened or has an error."""
    assert msgspec.json.decode(msgspec.json.encode(graph), type=FrozenGraph) == graph
    for frozen in (*graph.jobs, *graph.reporters):
        for book in (*frozen.pre_run, *frozen.run, *frozen.post_run):
            for secret in book.secrets:
                try:
                    revealed(secret.data, secret.project, Keys())
                except SecretClosed:
                    raise AssertionError("a secret that nobody can open came to a job") from None


@pytest.mark.heavy
@settings(max_examples=share(30))
@given(a_tenant(), st.lists(a_state, min_size=1, max_size=3))
def test_a_layout_that_follows_landings_equals_a_new_one_in_any_tenant(acme: Tenant, states: list[Files]) -> None:
    cache = ParseCache(Keys())
    followed: TenantLayouts | None = None
    before: dict[tuple[str, str, str], FrozenGraph] = {}
    for state in states:
        now = branches(acme, of_tenant(acme, state), cache)
        followed = TenantLayouts.of(acme, now, cache, before=followed)
        anew = build_layout(acme, now)
        assert essence(followed.landed) == essence(anew)
        after = graphs(acme, followed.landed)
        for graph in after.values():
            same_all_the_way(graph)
        for key, graph in after.items():
            differs(before.get(key, FrozenGraph()), graph)
            assert not describe.difference(graph, anew.freeze(*key, files=("zuul.yaml",)))
        before = after


def differs(old: FrozenGraph, new: FrozenGraph) -> None:
    """Applying and reverting a difference gives the same layout; the reported differences are the real ones."""
    there, back = describe.difference(old, new), describe.difference(new, old)
    assert [job["name"] for job in there.new] == [job["name"] for job in back.gone]
    assert there.changed.keys() == back.changed.keys()
    if not old.errors and not new.errors:
        names = [[job.name for job in (*graph.jobs, *graph.reporters)] for graph in (old, new)]
        common = [name for name in names[0] if name in names[1]]
        again = [name for name in names[1] if name in names[0]]
        assert [job["name"] for job in there.new] == [name for name in names[1] if name not in names[0]]
        assert there.order == (again if common != again else [])


PLAIN_TEXT = (
    "- tenant: {name: acme, source: {forge: {config-projects: [ops, more], "
    "untrusted-projects: [app: {include-provider-config: true}, lib, site/ansible-role-x]}}}"
)
PLAIN = tenant(PLAIN_TEXT)


@pytest.mark.long
@pytest.mark.heavy
@settings(max_examples=share(30))
@given(a_tenant(), a_state, st.lists(a_proposal, min_size=1, max_size=4))
@example(PLAIN, SOUND, [{"app": SOUND["app"] + "- job: {name: unit, final: true}"}, {"lib": SOUND["lib"]}])
@example(PLAIN, SOUND, [{"app": SOUND["app"].replace("- image: {name: debian, type: zuul}", "")}, {"app": "[]"}])
def test_a_layout_that_a_chain_proposes_equals_a_new_one_in_any_tenant(
    acme: Tenant, state: Files, chain: list[Files]
) -> None:
    cache = ParseCache(Keys())
    made = TenantLayouts.of(acme, branches(acme, of_tenant(acme, state), cache), cache)
    chains = [dict[str, str | Mapping[str, str]]()]
    for proposal in chain:
        chains.append({**chains[-1], **proposal})
    for (ahead, proposed), proposal in zip(pairwise(chains), chain, strict=True):
        own = next(iter(proposal))
        name, _, branch = own.partition("@")
        project = acme.find(name)
        assert project is not None
        used = made.layout(texts(acme, proposed))
        assert essence_of(used) == essence_of(with_untrusted(acme, state, proposed, cache))
        for pipeline in (*used.pipelines, "gone"):
            request = LayoutRequest("", pipeline, project.project, branch or "master", texts=texts(acme, proposed),
                                    ahead=texts(acme, ahead))  # fmt: skip
            found = made.judged(request)
            assert found == TenantLayouts.of(acme, made.branches, cache).judged(request), "whatever was asked before"
            same_all_the_way(found.graph)
            differs(made.landed.freeze(pipeline, project.project, branch or "master"), found.graph)


def with_untrusted(acme: Tenant, state: Files, files: Files, cache: ParseCache) -> Layout:
    """Build the layout from landed files and the chain's proposals for projects whose proposals take effect."""
    takes = {
        place: content
        for place, content in files.items()
        if place not in CONFIG and is_read(acme, place, proposed=True)
    }
    return build_layout(acme, branches(acme, {**of_tenant(acme, state), **takes}, cache))


def of_tenant(acme: Tenant, state: Files) -> Files:
    """Return landed files that are read."""
    return {place: content for place, content in landed(state).items() if is_read(acme, place)}


def is_read(acme: Tenant, place: str, *, proposed: bool = False) -> bool:
    """Return whether the branch is excluded, or always dynamic, which is read only from proposals."""
    name, _, branch = place.partition("@")
    project = acme.find(name)
    assert project is not None
    if branch == "dyn/1" and project.always_dynamic_branches:
        return proposed
    return branch not in project.exclude_branches


def essence_of(layout: Layout) -> dict[str, object]:
    """Leave out files that never change before they land."""
    found = essence(layout)
    singles = {
        kind: value for kind, value in found["singles"].items() if kind not in ("semaphore", "section", "provider")
    }
    return {**found, "singles": singles}
