"""Test that patterns have Python's meaning, and none takes long."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.config import regex
from headgate.config.patterns import BadPattern, Undecided, compiled, fullmatches, matches
from headgate.config.regex import Exhausted, Walk, steps_max
from tests.tiers import share

from .places import layouts

CHARACTERS = "ab/\nAé_1 \u0131\u017f"
ATOMS = st.sampled_from(
    ["a", "b", "ab", "/", ".", "a", r"\d", r"\w", r"\s", r"\W", "[ab]", "[^a]", "[^/]", "é", "A", "[a-é]", "1", r"\n"]
)
EDGES = st.sampled_from(["^", "$", r"\A", r"\Z", r"\b", r"\B", ""])
REPEATS = st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{1,3}", "{0,2}?", "{2,}"])


def wider(inner: st.SearchStrategy[str], *, references: bool = False) -> st.SearchStrategy[str]:
    group = st.builds("(?:{})".format, inner)
    one = st.one_of(
        st.builds("{}{}".format, inner, inner),
        st.builds("{}|{}".format, inner, inner).map("(?:{})".format),
        st.builds("({})".format, inner),
        st.builds("{}{}".format, group, REPEATS),
        st.builds("(?!{})".format, inner),
        st.builds("(?={})".format, inner),
        st.builds("(?i:{})".format, inner),
        st.builds("(?s:{})".format, inner),
        st.builds("(?-i:{})".format, inner),
        st.sampled_from(["(?<!a)", "(?<=b)", "(?<!ab)", r"(?<=\w)", "(?<![ab]/)"]),
    )
    if references:
        return one | st.builds(r"(?:({}){}\1)".format, inner, inner)
    return one | st.builds("(?>{})".format, inner) | st.builds("(?:{}){}+".format, inner, st.sampled_from("*+?"))


PATTERNS = st.recursive(ATOMS | EDGES, wider, max_leaves=8)
FLAGS = st.sampled_from(["", "", "(?i)", "(?s)", "(?m)", "(?a)", "(?is)"])
SUBJECTS = st.text(alphabet=CHARACTERS, max_size=8)


def python(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return None


@pytest.mark.long
@pytest.mark.heavy
@settings(max_examples=share(600))
@given(FLAGS, PATTERNS, st.lists(SUBJECTS, min_size=1, max_size=4))
def test_a_walk_matches_as_pythons_engine_does(flags: str, text: str, subjects: list[str]) -> None:
    engine = python(flags + text)
    if engine is None:
        return
    for subject in subjects:
        for full in (False, True):
            found = engine.fullmatch(subject) if full else engine.match(subject)
            walked = Walk(regex.parsed(flags + text), subject, steps_max=1_000_000).matches(full=full)
            assert walked == (found is not None), (flags + text, subject, full)


REFERRING = st.recursive(ATOMS | EDGES, lambda inner: wider(inner, references=True), max_leaves=6)


@pytest.mark.heavy
@settings(max_examples=share(400))
@given(ATOMS, REFERRING, st.sampled_from([r"\1", r"(?(1)b|a)", r"(?(1)b)"]), st.lists(SUBJECTS, min_size=1, max_size=4))
def test_references_match_as_in_python(first: str, text: str, last: str, subjects: list[str]) -> None:
    pattern = f"({first})?{text.replace(chr(92) + '1', 'a')}{last}"
    engine = python(pattern)
    if engine is None:
        return
    for subject in subjects:
        for full in (False, True):
            found = engine.fullmatch(subject) if full else engine.match(subject)
            try:
                walked = Walk(regex.parsed(pattern), subject, steps_max=200_000).matches(full=full)
            except Exhausted:
                continue
            assert walked == (found is not None), (pattern, subject, full)


@settings(max_examples=share(300))
@given(PATTERNS, SUBJECTS)
def test_patterns_declared_fast_are_fast(text: str, subject: str) -> None:
    engine = python(text)
    if engine is None or steps_max(regex.parsed(text), 12 * len(subject)) > 1_000_000:
        return
    began = time.process_time()
    engine.fullmatch(subject * 12)
    assert time.process_time() - began < 1.0, text


USUAL = [
    (r"^(?!stable/).*$", {"master": True, "stable/1": False, "unstable/1": True}),
    (r"^(?!(stable|feature)/|main$).*$", {"main": False, "mainly": True, "feature/x": False, "x": True}),
    (r"^(?!.*wip).*release.*$", {"my release": True, "wip release": False}),
    (r"(?i)^(?!DOCS/).*", {"docs/x": False, "src/docs": True}),
    (r"^(?=.*foo)(?!.*bar).*", {"a foo": True, "foo bar": False}),
    (r"(?!x)a|(?!y)y|b", {"a": True, "y": False, "b": True}),
    (r".*(?<!\.md)$", {"README.md": False, "README.rst": True}),
    (r"^(?P<v>\d+)\.\d+-(?P=v)$", {"1.2-1": True, "1.2-2": False}),
    (r"^(stable/)?(?(1)\d+|main)$", {"stable/3": True, "main": True, "stable/main": False}),
    (r"(?>a+)b", {"aab": True, "aac": False}),
    (r"^(?!x)(?:[a-z]+-)*[a-z]+$", {"a-b-c": True, "x-y": False, "a-" * 500: False}),
]


@pytest.mark.parametrize(("pattern", "answers"), USUAL, ids=[pattern for pattern, _ in USUAL])
def test_patterns_that_only_python_knows_are_reported_and_match(pattern: str, answers: dict[str, bool]) -> None:
    assert compiled(pattern).legacy
    assert {subject: matches(pattern, subject) for subject in answers} == answers
    assert {subject: matches({"regex": pattern, "negate": True}, subject) for subject in answers} == {
        subject: not found for subject, found in answers.items()
    }


EVIL = [
    r"^(?=(a+)+$)x",
    r"(?!b)(a+)+$",
    r"(?!b)(a|a)*$",
    r"(?!b)(a|aa)+$",
    r"(?!b)(.*a){20}$",
    r"(?!b)([a-z]+)*\d$",
    r"(?!b)((a*)*)*$",
    r"(?!b)(?:a?){500}a{500}$",
    r"(?=(?:a{1000}){1000})a",
    r"(?:(?:(?=a)){1000}){1000}b",
    r"((?=a)?){4000000}b",
    r"(?!b).*.*.*.*.*.*.*.*x",
    r"(?:(?!(?:a|aa)+$).)*x",
    r"(?<!a)(?:(?:(?:a*)*)*)*b",
    r"(a*)*\1b",
    r"(?=(a+))\1*x(?:\1|a)*(?:\1|a)*$",
    r"(x)?(?(1)(a+)+b|(a+)+b)",
    r"(?:" * 90 + "(?!b)a" + ")*" * 90 + "$",
]


@pytest.mark.long
@pytest.mark.heavy
@pytest.mark.parametrize("pattern", EVIL)
def test_no_pattern_takes_long(pattern: str) -> None:
    for subject, ask in (("a" * 30 + "!", matches), ("a" * 1_000 + "!", fullmatches), ("ab" * 2_000, matches)):
        began = time.process_time()
        try:
            ask(pattern, subject)
        except Undecided as undecided:
            assert repr(pattern) in str(undecided) and len(str(undecided)) < 1_000
        except BadPattern:
            pass
        assert time.process_time() - began < 3.0


def test_a_pattern_has_a_bounded_length() -> None:
    with pytest.raises(BadPattern, match="has 20001 characters"):
        compiled("a" * 20_001)
    assert compiled("|".join(f"stable/{n}" for n in range(1_500))).legacy == ""


def test_ranges_that_take_long_to_compile_are_refused() -> None:
    with pytest.raises(BadPattern, match="ranges of more than"):
        compiled("(?!x)" + "[\0-\U0010ffff]" * 1_000)
    assert compiled("(?i)(?!x)[\u4e00-\u9fa5a-z]+").legacy


def test_patterns_that_re2_knows_are_matched_by_it() -> None:
    for pattern in (r"^stable/.*$", r"(a+)+$", r"^(?i:x)", ""):
        assert compiled(pattern).legacy == ""
    assert matches("(a+)+$", "a" * 100_000) and not matches("(a+)+$", "a" * 100_000 + "!")


@pytest.mark.parametrize("pattern", ["(", "a{2,1}", "(?<=a+)b", "[z-a]", "\ud800", "(?(9)a)", "*a"])
def test_patterns_that_no_engine_compiles_are_reported(pattern: str) -> None:
    with pytest.raises(BadPattern):
        compiled(pattern)


@pytest.mark.heavy
@settings(max_examples=share(300))
@given(st.text(max_size=30), st.text(max_size=10))
def test_any_text_is_a_pattern_or_not(pattern: str, subject: str) -> None:
    try:
        compiled(pattern)
    except BadPattern:
        return
    matches(pattern, subject)
    fullmatches(pattern, subject)


ENDLESS = r"^(a*)*\\1b"
BRANCH = "a" * 60 + "!"


@pytest.mark.parametrize(
    ("where", "named"),
    [
        ("- job: {{name: j, run: r, branches: '{p}'}}\n- project: {{check: {{jobs: [j]}}}}", "job j"),
        ("- job: {{name: j, run: r}}\n- project: {{check: {{jobs: [{{j: {{branches: '{p}'}}}}]}}}}", "job j"),
        ("- job: {{name: j, run: r, files: '{p}'}}\n- project: {{check: {{jobs: [j]}}}}", "job j"),
        ("- job: {{name: j, run: r, irrelevant-files: ['{p}']}}\n- project: {{check: {{jobs: [j]}}}}", "job j"),
        ("- job: {{name: j, run: r}}\n- project: {{branches: '{p}', check: {{jobs: [j]}}}}", ""),
        (
            "- job: {{name: j, run: r}}\n- project-template: {{name: t, check: {{jobs: [j]}}}}\n"
            "- pragma: {{implied-branch-matchers: true, implied-branches: ['{p}']}}\n- project: {{templates: [t]}}",
            "",
        ),
    ],
)
def test_an_undecidable_match_is_an_error_of_the_item_and_no_answer(where: str, named: str) -> None:
    made = layouts({f"app@{BRANCH}": where.format(p=ENDLESS.replace("\\\\", "\\"))}).landed
    (app,) = (p.project for p in made.tenant.projects if p.name == "app")
    assert made.takes_part("check", app, BRANCH)
    assert made.queue_of(app, BRANCH, "check")
    graph = made.freeze("check", app, BRANCH, files=("a" * 60 + "!", "b"))
    (error,) = graph.errors
    assert error.name == "Pattern Undecided" and named in error.text and "(a*)*" in error.text
    assert not graph.jobs
