"""Limit what there is too much of: each number may only shrink.

Lower a limit whenever you can; never raise one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

from tests.house.sources import ROOT, SOURCE, WRITTEN, facts

TESTS = sorted(p for p in (ROOT / "tests").rglob("*.py") if "node_modules" not in p.parts)
SMALL_LINES = 60
SMALL = 0
"""Modules with fewer lines whose only user is in the same package: merge it into that user."""
COMPLEX = 15
"""Functions that are more complex than 10, each with its reason on the line."""
ANY = 1_555
"""Uses of `Any` in annotations."""
IMPORT_SHARE = 0.06
"""Lines that import, of all lines."""
LONG_IMPORTS = 3
"""Imports that take several lines: a module from which that many names are taken is imported itself."""
UNUSED = {"__all__", "__getattr__", "__version__", "read_lock"}
"""Names that others read. `read_lock` is the other side of `write_lock`."""
PRIVATE_WORDS = {"said", "told", "asked", "kept", "whole"}
"""Words that describe how a value was obtained, not what it is."""
PLAIN = {"whole_number", "whole_seconds", "whole_topics", "submit_whole_topic", "times_asked"}
"""Names in which the word says what the value is: numbers, topics that Gerrit submits whole, and counted questions."""


def _small() -> Iterator[str]:
    graph, texts = grimp.build_graph("headgate", cache_dir=None), {p: p.read_text() for p in WRITTEN}
    for path, text in texts.items():
        if path.stem in ("__init__", "__main__") or text.count("\n") >= SMALL_LINES:
            continue
        name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
        users = graph.find_modules_that_directly_import(name)
        if len(users) == 1 and next(iter(users)).rpartition(".")[0] == name.rpartition(".")[0]:
            yield name


def test_few_small_modules_have_a_neighbour_as_their_only_user() -> None:
    found = list(_small())
    assert len(found) <= SMALL, found


def test_few_functions_are_complex_and_each_says_why() -> None:
    texts = [p.read_text() for p in (*WRITTEN, *TESTS) if p != Path(__file__)]
    found = [line for text in texts for line in text.split("\n") if "# noqa: C901" in line]
    assert len(found) <= COMPLEX and all(re.search(r"# noqa: C901 - \w", line) for line in found), found


def test_any_is_used_less_and_less() -> None:
    assert sum(facts(path).anys for path in WRITTEN) <= ANY


def _sleeps(path: Path) -> Iterator[str]:
    """Yield the real sleeps of a module: calls that take time, where the clock is not the test's own."""
    text = path.read_text()
    if "sleep(" not in text or re.search("run_virtual|on_site|VirtualLoop|virtual|@simulated_machines", text):
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and re.fullmatch(r"((asyncio|time)\.)?sleep\((?!0\)).*", ast.unparse(node), re.S):
            yield f"{path.relative_to(ROOT)}:{node.lineno}"


def test_tests_do_not_sleep() -> None:
    """Tests that wait for something, check that nothing happens, or are slow on purpose use `tests.waiting`."""
    assert not [sleep for path in TESTS if path != ROOT / "tests" / "waiting.py" for sleep in _sleeps(path)]


def test_product_code_uses_every_name_that_it_defines() -> None:
    """Code that only tests use is theirs, and code that nobody uses is no code."""
    product = [path for path in WRITTEN if "testing" not in path.parts]
    used = {name for path in product for name in facts(path).reads}
    found = [f"{path}: {name}" for path in product for name in facts(path).defined if name not in used | UNUSED]
    assert not found


def test_few_imports_take_several_lines() -> None:
    texts = [path.read_text() for path in WRITTEN]
    assert sum(len(re.findall(r"^ *from [\w.]+ import \($", text, re.M)) for text in texts) <= LONG_IMPORTS


def test_no_module_is_imported_both_as_a_module_and_by_name() -> None:
    found = list[str]()
    for path in WRITTEN:
        nodes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ImportFrom) and node.module]
        modules = {f"{node.module}.{one.name}" for node in nodes for one in node.names}
        found += [
            f"{path}: {node.module}" for node in nodes if node.module in modules and node.module.startswith("headgate")
        ]
    assert not found


def test_imports_are_a_small_part_of_the_code() -> None:
    lines = sum(path.read_text().count("\n") for path in WRITTEN)
    assert sum(facts(path).import_lines for path in WRITTEN) / lines <= IMPORT_SHARE


def test_names_of_values_contain_no_private_words() -> None:
    every = ((path, name) for path in WRITTEN for name in facts(path).names if name.strip("_") not in PLAIN)
    found = [
        f"{path}: {name}"
        for path, name in every
        if PRIVATE_WORDS & {*re.findall("[a-z]+", re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower())}
    ]
    assert not found, "name each by what the value is"


def test_commands_print_only_through_the_function_that_cleans_text() -> None:
    """`say` shows control characters as escapes, so no caller has to."""
    printing = re.compile(r"(?:click\.|from click import .*\b)(?:echo|secho|style|echo_via_pager)\b")
    found = [str(path) for path in WRITTEN if printing.search(path.read_text())]
    assert found == [str(SOURCE / "cli/terminal/say.py")]


def test_modules_of_commands_are_called_as_their_command() -> None:
    assert not list((SOURCE / "cli").rglob("command*.py"))


def test_paths_of_the_store_are_put_together_in_the_map() -> None:
    glued = re.compile(r"""f"\{[\w.()]*\.\w*path\}[./]|\.path \+ "/""")
    theirs = [SOURCE / part for part in ("map", "recipes", "store", "testing", "adapters/forges")]
    outside = [p for p in WRITTEN if not any(p.is_relative_to(part) for part in theirs)]
    assert not [f"{p.relative_to(SOURCE)}: {m[0]}" for p in outside for m in glued.finditer(p.read_text())]


@pytest.mark.parametrize("path", sorted((SOURCE / "recipes").glob("*.py")), ids=lambda path: path.stem)
def test_a_recipe_has_at_most_120_lines_of_code(path: Path) -> None:
    """Comments, docstrings and empty lines do not count, so that explanations cost nothing."""
    explained = {
        number
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate(path.read_text().split("\n"), 1)
    code = [line for number, line in lines if line.strip("# ") and line.lstrip()[0] != "#" and number not in explained]
    assert len(code) <= 120
