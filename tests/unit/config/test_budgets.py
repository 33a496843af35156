"""Test that excessive configuration is an error of its author, found before it costs anything."""

from __future__ import annotations

import pytest

from headgate.config.budgets import Budgets
from headgate.config.dynamic import TenantLayouts
from headgate.config.files.document import load
from headgate.config.files.source import Wrong, unread
from headgate.config.layout import Layout
from headgate.config.model import ConfigError
from headgate.config.parse import ParseCache, parse_branches

from .places import BASE, branches, tenant, texts

SMALL = Budgets(
    file_max_bytes=100_000, values_max=2_000, written_max_bytes=200_000, jobs_max=5, edges_max=12, semaphores_max=3
)


def errors(text: str, budgets: Budgets = SMALL) -> tuple[ConfigError, ...]:
    project = next(p for p in tenant().projects if not p.trusted)
    return parse_branches(project, {"master": {"zuul.yaml": text}}, budgets)["master"].errors


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("- job: {name: x}\n" + "#" * 100_000, "at most 100 kB are allowed"),
        ("[" + "a," * 3_000 + "]", "more than 2000 values"),
        ("{" + "a," * 1_500 + "}", "more than 2000 values"),
        ("- \n" * 3_000, "more than 2000 values"),
        ("- a\r" * 3_000, "more than 2000 values"),
        ("? \n" * 1_500, "more than 2000 values"),
        ("a: &a [" + "x," * 60 + "]\nb: [" + "*a," * 60 + "]", "more than 2000 values"),
        ("a: &a " + "x" * 50_000 + "\nb: [*a, *a, *a, *a]", "has more than 200 kB"),
        ("a: &a {k: " + "x" * 50_000 + "}\nb: [{<<: *a}, {<<: *a}, {<<: *a}, {<<: *a}]", "has more than 200 kB"),
        ("a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 300)), "more than 200 levels"),
        ("- n: " + "9" * 50_000, "is too long"),
        ("- n: " + "1:" * 40_000 + "1", "is too long"),
        ("- n: 0x" + "f" * 50_000, "is too long"),
        ("- n: !!int '" + "1:" * 40_000 + "1'", "is too long"),
        (unread("this file has 50 MB; at most 2 MB are read"), "this file has 50 MB"),
    ],
)
def test_too_large_a_file_is_an_error_at_its_place(text: str, why: str) -> None:
    (error,) = errors(text)
    assert why in error.text and error.severity == "error"
    assert (error.path, error.branch) == ("zuul.yaml", "master") and error.line > 0
    assert len(error.snippet) < 10_000


@pytest.mark.parametrize(
    "text", ["a: '" + "9" * 3_000 + "'", "a: " + "0123456789abcdef" * 8, "a: [" + "x, " * 999 + "]"]
)
def test_text_that_is_only_long_is_read(text: str) -> None:
    assert load(text, SMALL)


def test_a_number_of_many_digits_in_another_place_says_its_line() -> None:
    with pytest.raises(Wrong) as wrong:
        load("a: 1\nb:\n  c: " + "9" * 200)
    assert wrong.value.line == 3


def test_a_branch_has_a_bounded_number_of_files_and_bytes() -> None:
    project = next(p for p in tenant().projects if not p.trusted)
    many = {f"zuul.d/{n}.yaml": "[]" for n in range(5_001)}
    large = {f"zuul.d/{n}.yaml": "#" * 1_500_000 for n in range(7)}
    for files, why in ((many, "5001 configuration files"), (large, "has 10.5 MB; at most 10 MB")):
        (error,) = parse_branches(project, {"master": files})["master"].errors
        assert why in error.text and error.path == "zuul.d/0.yaml"


def layouts() -> TenantLayouts:
    acme, cache = tenant(), ParseCache(budgets=SMALL)
    return TenantLayouts.of(acme, branches(acme, {"ops": BASE}, cache), cache)


def frozen(text: str) -> tuple[Layout, tuple[ConfigError, ...], int]:
    made = layouts()
    project = next(p for p in made.tenant.projects if p.name.endswith("app"))
    layout, wrong = made.proposed(texts(made.tenant, {"app": text}), (project.project, "master"))
    assert wrong == ()
    graph = layout.freeze("check", project.project, "master", files=("a",))
    return layout, graph.errors, len(graph.jobs)


def jobs(count: int, attributes: str = "run: a.yaml") -> str:
    made = "".join(f"- job: {{name: j{n}, {attributes.format(n=n)}}}\n" for n in range(count))
    return made + "- project: {check: {jobs: [" + ", ".join(f"j{n}" for n in range(count)) + "]}}\n"


def test_an_item_has_a_bounded_number_of_jobs() -> None:
    assert frozen(jobs(5))[1:] == ((), 5)
    _, (error,), _ = frozen(jobs(6))
    assert "more than 5 jobs" in error.text and "item_jobs_max" in error.text and error.line == 7


def test_jobs_that_the_files_of_a_change_leave_out_are_not_counted() -> None:
    assert frozen(jobs(20, "run: a.yaml, files: ['^docs/{n}$']"))[1:] == ((), 0)


def test_jobs_have_a_bounded_number_of_dependencies() -> None:
    soft = ", ".join(f"{{{{name: j{n}, soft: true}}}}" for n in range(4))
    _, (error,), _ = frozen(jobs(4, f"run: a.yaml, dependencies: [{soft}]"))
    assert "more than 12 dependencies" in error.text


def test_jobs_that_run_only_because_others_depend_on_them_are_counted() -> None:
    needed = jobs(5, "run: a.yaml, files: ['^docs/{n}$']").replace("[j0", "[all, j0")
    all = "- job: {name: all, run: a.yaml, dependencies: [j0, j1, j2, j3, j4]}\n"
    _, (error,), _ = frozen(all + needed)
    assert "more than 5 jobs" in error.text


def test_dependencies_on_initializers_are_counted() -> None:
    assert frozen(jobs(5, "run: a.yaml, type: regular"))[1] == ()
    made = jobs(5, "run: a.yaml, type: initializer").replace("initializer", "regular", 2)
    assert frozen(made)[1] == (), "2 jobs depend on 3 initializers"
    _, (error,), _ = frozen(made.replace("type: regular", "type: regular, dependencies: [j2, j3, j4], provides: [x]"))
    assert "more than 12 dependencies" in error.text


def test_names_that_jobs_provide_and_require_are_counted() -> None:
    names = ", ".join(f"n{n}" for n in range(7))
    assert frozen(jobs(1, f"run: a.yaml, provides: [{names}]"))[1] == ()
    _, (error,), _ = frozen(jobs(1, f"run: a.yaml, provides: [{names}], requires: [{names}]"))
    assert "more than 12 dependencies" in error.text


def test_semaphores_that_nothing_defines_are_counted() -> None:
    assert frozen(jobs(3, "run: a.yaml, semaphores: [s{n}]"))[1] == ()
    for more in ("run: a.yaml, semaphores: [s{n}, t{n}]", "run: {{name: a.yaml, semaphores: t{n}}}, semaphores: s{n}"):
        _, (error,), _ = frozen(jobs(2, more))
        assert "more than 3 semaphores that no landed configuration defines" in error.text, more


@pytest.mark.long
@pytest.mark.heavy
def test_variants_of_one_job_are_bounded() -> None:
    made = ParseCache()
    acme = tenant()
    text = "- job: {name: j, run: a.yaml}\n" + "".join(f"- job: {{name: j, timeout: {n + 1}}}\n" for n in range(2_100))
    static = TenantLayouts.of(acme, branches(acme, {"ops": BASE}, made), made)
    project = next(p for p in acme.projects if p.name.endswith("app"))
    layout, _ = static.proposed(texts(acme, {"app": text + "- project: {check: {jobs: [j]}}\n"}))
    (error,) = layout.freeze("check", project.project, "master").errors
    assert "more than 2000 variants" in error.text
