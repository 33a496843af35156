"""Test that retired private words do not come back as names, also of tests; each has a standard replacement."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from headgate.cli.main import group
from headgate.cli.options import OPTIONS
from headgate.cli.pages.docs import metrics_page
from headgate.map.tree import render
from headgate.map.trees import trees
from headgate.queue.server.openapi import description
from headgate.web.app import ROUTES
from headgate.web.description import described
from tests.house.scripts import names as names_of_script
from tests.house.sources import FUNCTION, ROOT, SOURCE, WRITTEN, facts
from tests.house.test_ratchets import PRIVATE_WORDS

SUCCESSORS = {
    "standing": "change state, partition status",
    "keeping": "pipeline store",
    "wish": "desired state",
    "notice": "event",
    "posting": "outbox message",
    "letter": "message (`dead letter` stays)",
    "lane": "partition (of a queue); the inventory's are qualified",
    "hold": "ownership (`autohold`, and leases that are held, stay)",
    "desk": "what it does",
    "yard": "what it does",
    "bell": "what it does",
    "door": "server, listener, entry",
    "reach": "what it does",
    "witness": "what it does",
    "crew": "workers",
    "trouble": "problem",
    "looking": "poll",
    "telling": "explain",
    "trying": "tryjob",
    "hearing": "listener",
    "steering": "control",
}
"""Word, also in the plural -> its replacement."""
LEFT = {
    "hold": 87,  # locks, machines of `autohold`, conditions that hold, `hold` of a delayed message (API)
    "letter": 3,  # of the alphabet
    "posting": 10,
}  # fmt: skip
"""Numbers of names that may contain the word: lower them. `posting`: lists of an inverted index are called so."""


def _words(name: str) -> set[str]:
    """Return the words of a name in lower case and in the singular."""
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    return {re.sub(r"(?<=sh)es$|(?<=ch)es$|(?<!s)s$", "", word.lower()) for word in words}


def test_words_are_split_and_taken_in_the_singular() -> None:
    assert _words("_ObjectNotices") == {"object", "notice"} and _words("wishes_left") == {"wish", "left"}
    assert _words("DOORS") == {"door"} and _words("reaches") == {"reach"}


def test_names_of_scripts_are_those_of_code() -> None:
    script = """
    // a told comment, /* and */ `none`
    const one = `a told text ${two.map((it) => `${three} told`)} told`;
    const four = /told["`]/.test("told \\" told"), five = 1 / six / 7; /* told */
    """
    names = ["const", "one", "two", "map", "it", "three", "const", "four", "test", "five", "six"]
    assert list(names_of_script(script)) == names


def test_private_words_do_not_come_back() -> None:
    found: Counter[str] = Counter()
    places: dict[str, set[str]] = {}
    for path in WRITTEN:
        for name in (*facts(path).names, path.parent.name if path.stem == "__init__" else path.stem):
            for word in _words(name) & SUCCESSORS.keys() - ({"letter"} if "dead" in _words(name) else set()):
                found[word] += 1
                places.setdefault(word, set()).add(f"{path}: {name}")
    excess = {word: sorted(places[word]) for word, n in found.items() if n > LEFT.get(word, 0)}
    assert not excess, {word: (SUCCESSORS[word], excess[word]) for word in excess}
    assert dict(found) == LEFT, "lower the numbers"


CHECKS = sorted(p for part in ("tests", "bench") for p in (ROOT / part).rglob("*.py") if "node_modules" not in p.parts)
VERBS = {"hold", "reach"}
"""Words that are plain verbs in the sentences that name tests: locks and leases are held, and networks reach hosts."""


def _declared(path: Path) -> Iterator[str]:
    """Yield the names of a module, its package, and all that it declares except local variables."""
    yield from (path.stem, path.parent.name)
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
        if isinstance(node, ast.Module | ast.ClassDef):
            inner = (
                one for part in node.body if not isinstance(part, FUNCTION | ast.ClassDef) for one in ast.walk(part)
            )
            yield from (one.id for one in inner if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))


def test_tests_and_benchmarks_are_named_plainly() -> None:
    found = {f"{path.relative_to(ROOT)}: {name}": _private(name) - VERBS for path in CHECKS for name in _declared(path)}
    assert not {name: [SUCCESSORS.get(word, "what it is") for word in words] for name, words in found.items() if words}


STATIC = SOURCE / "web" / "static"
STORED = "a stored name, kept for rolling upgrades: processes of both versions read and write it"
FORMER = "the name of the release before, which is deprecated and works until the next one"
HELD = "a machine, or a message, that is held: a word of the field"
REFERENCE = "a name of the reference"
KNOWN: Mapping[str, Mapping[str, str]] = {
    "scripts": {"hold": HELD},
    "APIs": {
        **dict.fromkeys(("trouble", "troubles", "standing", "kept"), FORMER),
        **dict.fromkeys(("hold_expiration", "node_hold_expiration"), REFERENCE),
        **dict.fromkeys(("HoldShape", "ForHold", "X-Hold", "hold"), HELD),
    },
    "settings": dict.fromkeys(("default_hold_expiration", "max_hold_expiration"), REFERENCE),
    "places": {
        **dict.fromkeys(("asked", "notices", "trouble", "troubles", "wish", "wishes"), STORED),
        **dict.fromkeys(("hold-requests", "<hold>"), REFERENCE),
    },
    "records": dict.fromkeys(
        (
            "ansible_asked",
            "asked",
            "asked_ms",
            "lane",
            "notices",
            "postings",
            "reach",
            "said",
            "told_ms",
            "trouble",
            "troubles",
            "trying",
        ),
        STORED,
    ),
    "tables": dict.fromkeys(("crew", "kept", "lane", "trouble"), STORED),
    "protos": {"asked_ms": FORMER},
    "commands": {"--node-hold-expiration": REFERENCE, "hold": HELD, "--hold": HELD},
}
"""Kind -> part of a name with such a word -> why it stays. Take a former name out with the release that ends it."""


def _scripts() -> Iterator[str]:
    for path in sorted(STATIC.glob("*.js")):
        if path.name != "uPlot.js":
            yield from names_of_script(path.read_text())


def _styles() -> Iterator[str]:
    yield from re.findall(r"[.#]([a-z][\w-]*)", (STATIC / "style.css").read_text())


def _apis() -> Iterator[str]:
    """Yield paths, query parameters, schemas and fields of the pages' API and of the queues' one."""
    for api in (described(tuple(ROUTES)), description()):
        yield from _described(msgspec.to_builtins(api))
        yield from (part for path in api["paths"] for part in path.split("/"))
        yield from api["components"]["schemas"]


def _described(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "in" in value and "schema" in value:
            yield value["name"]
        if isinstance(properties := value.get("properties"), dict):
            yield from properties
        for one in value.values():
            yield from _described(one)
    elif isinstance(value, list):
        for one in value:
            yield from _described(one)


def _settings() -> Iterator[str]:
    for section, options in OPTIONS.items():
        yield from (section, *options)


def _places() -> Iterator[str]:
    for tree in trees():
        yield from (part for row in render(tree.dir, tree.root) for part in row.template.split("/"))


def _records() -> Iterator[str]:
    """Yield the names of fields that records and answers give to attributes with another name."""
    for path in WRITTEN:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("msgspec.field", "field"):
                values = [one.value for one in node.keywords if one.arg == "name"]
                yield from (str(value.value) for value in values if isinstance(value, ast.Constant))


def _tables() -> Iterator[str]:
    """Yield the words of statements that make tables."""
    for path in WRITTEN:
        for _, text in facts(path).strings:
            for made in re.findall(r"create table if not exists (.*?)(?:;|\Z)", text, re.S):
                yield from re.findall(r"\w+", made)


def _loggers() -> Iterator[str]:
    for path in WRITTEN:
        yield from re.findall(r'getLogger\("([^"]+)"', path.read_text())


def _metrics() -> Iterator[str]:
    yield from re.findall(r"headgate_\w+|(?<=\|) `\w+`", metrics_page())


def _protos() -> Iterator[str]:
    for path in SOURCE.rglob("*.proto"):
        yield from re.findall(r"\w+", re.sub(r"//[^\n]*", "", path.read_text()))


def _commands() -> Iterator[str]:
    with click.Context(group, info_name="headgate") as context:
        yield from _below(group, context)


def _below(command: click.Command, context: click.Context) -> Iterator[str]:
    yield from (option for one in command.params for option in one.opts)
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None, "it is in the list"
            yield inner
            yield from _below(found, context)


KINDS = {
    "scripts": _scripts, "styles": _styles, "APIs": _apis, "settings": _settings, "places": _places,
    "records": _records, "tables": _tables, "loggers": _loggers, "metrics": _metrics, "commands": _commands,
    "protos": _protos,
}  # fmt: skip
"""What has names that others see, or that are stored."""


def _private(name: str) -> set[str]:
    words = _words(name)
    return words & {*SUCCESSORS, *PRIVATE_WORDS} - ({"letter"} if "dead" in words else set())


@pytest.mark.parametrize("kind", KINDS)
def test_names_that_others_see_are_words_of_the_field(kind: str) -> None:
    found = {name: _private(name) for name in KINDS[kind]() if _private(name)}
    known = KNOWN.get(kind, {})
    excess = {name: [SUCCESSORS.get(word, "what it is") for word in words] for name, words in found.items()}
    assert not excess.keys() - known.keys(), {name: excess[name] for name in excess.keys() - known.keys()}
    assert known.keys() <= found.keys(), "they are gone: take them out of KNOWN"
