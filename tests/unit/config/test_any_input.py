"""Test that any input gives a layout and a list of errors."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.config.files.document import load
from headgate.config.files.source import Wrong
from headgate.config.layout import build_layout
from headgate.config.parse import ParseCache
from headgate.testing.fuzz import configuration, load_tenants
from headgate.testing.fuzz import load as load_configuration
from tests.tiers import share

from .places import BASE, branches, layout, tenant


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(0, 60, 10))
def test_any_configuration_is_loaded_and_frozen(seed: int) -> None:
    for one in range(seed, seed + 10):
        load_configuration(configuration(Random(one)))
        load_tenants(Random(one))


@settings(max_examples=share(100))
@given(st.text() | st.binary().map(lambda data: data.decode(errors="surrogateescape")))
def test_any_text_is_yaml_or_wrong(text: str) -> None:
    layout({"app": text})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("&a [*a]", "contains itself"),
        (
            "a: &a [x, x]\nb: &b [*a, *a]\n" + "".join(f"c{n}: &c{n} [{f'*c{n - 1}, ' * 9}*b]\n" for n in range(1, 9)),
            "",
        ),
        ("[" * 300 + "]" * 300, "more than 200 levels"),
        ("x: 99999999999999999999", "too large"),
        ('x: "\\ud800"', "not YAML"),
        ("? [a]\n: b", "a key must be a string"),
        ("x: !!python/object:os.system {}", "unknown tag"),
        ("x: !!set {a, b}", "unknown tag"),
        ("<<: 3", "must be a mapping"),
        ("x: !encrypted/pkcs1-oaep {a: b}", "must precede a string"),
        ("x: \x07", "not YAML"),
        ("x: 0o", ""),
    ],
)
def test_yaml_that_no_configuration_needs_is_refused(text: str, why: str) -> None:
    try:
        load(text)
    except Wrong as wrong:
        assert why in wrong.text and wrong.line > 0
    else:
        assert not why


@settings(max_examples=share(30))
@given(
    st.permutations(["nonsense", "- job: {name: a, rnu: x}", "- nodeset: {name: n, nodes: [{}]}", "- job: {name: b}"])
)
def test_an_error_in_one_file_hides_none_of_another(texts: list[str]) -> None:
    acme = tenant()
    files = {f"zuul.d/{n}.yaml": text for n, text in enumerate(texts)}
    made = build_layout(acme, branches(acme, {"ops": BASE, "app": files}))
    assert len(made.errors) == 3 and "b" in made.jobs
    assert {e.path for e in made.errors} == {
        f"zuul.d/{n}.yaml" for n, text in enumerate(texts) if "name: b" not in text
    }


@settings(max_examples=share(30))
@given(
    st.permutations(
        [
            "- job: {name: a, run: a.yaml, dependencies: b}",
            "- job: {name: b, run: b.yaml, nodeset: n}",
            "- nodeset: {name: n, nodes: [{name: x, label: l}]}",
            "- project-template: {name: t, gate: {jobs: [a]}}",
            "- project: {templates: t, gate: {jobs: [b]}, vars: {v: 1}}",
            "- secret: {name: s, data: {}}",
            "- pragma: {implied-branch-matchers: false}",
        ]
    )
)
def test_the_order_of_stanzas_of_different_names_does_not_matter(stanzas: list[str]) -> None:
    graph = layout({"app": "\n".join(stanzas)}).freeze("gate", "git.acme/app", "master")
    assert graph.errors == ()
    found = {(job.name, job.vars["v"], tuple(n.label for n in job.nodeset.nodes)) for job in graph.jobs}
    assert found == {("a", 1, ()), ("b", 1, ("l",))}


def test_reading_twice_is_reading_once() -> None:
    acme, cache = tenant(), ParseCache()
    files = {"ops": BASE, "app": "- job: {name: a}\n- job: {nmae: b}", "app@stable": "- job: {name: a}"}
    one, two = (build_layout(acme, branches(acme, files, cache)) for _ in range(2))
    assert (one.errors, one.jobs) == (two.errors, two.jobs)
    assert cache.parsed == 3
