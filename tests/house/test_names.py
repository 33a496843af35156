"""Test that names are unique: classes in the project, and that modules are called by nouns."""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict

from tests.house.sources import ROOT, SOURCE, TOYS, WRITTEN, facts, name

PACKAGES = sorted({path.parent for path in WRITTEN} - {SOURCE})
ALLOWED = {"testing", "queueing"}
"""Gerunds that are common nouns in the field."""
BUILT_IN = {name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, BaseException)}
PARTICIPLES = {
    "asked", "begun", "built", "done", "found", "frozen", "given", "gone", "held", "hidden", "kept", "known", "leased",
    "left", "lost", "made", "meant", "passed", "past", "put", "said", "seen", "sent", "shown", "taken", "told", "tried",
    "vanished", "wanted", "written",
}  # fmt: skip


def test_public_classes_have_names_of_their_own() -> None:
    places = defaultdict[str, list[str]](list)
    # Toys, too, so that a copy of one is accepted.
    for path in (*WRITTEN, *TOYS):
        for kind in facts(path).top_classes:
            if not kind.startswith("_"):
                places[kind].append(str(path.relative_to(ROOT)))
    assert not {kind: paths for kind, paths in places.items() if len(paths) > 1}


def test_no_module_or_package_is_a_bare_verb_form() -> None:
    assert not [name(path) for path in [*WRITTEN, *PACKAGES] if _is_verb_form(path.stem)]


def _is_verb_form(name: str) -> bool:
    return name not in ALLOWED and ((name.endswith("ing") and name not in {"string"}) or name in PARTICIPLES)


def test_errors_form_a_tree() -> None:
    """Whoever embeds Headgate catches all its errors, or those of an area, by one name. `JobExit` carries the exit of a
    user's job, which nobody catches."""
    # What jobs raise and Ansible's own process are apart; stand-ins of other systems raise what these would.
    apart = [SOURCE / part for part in ("testing", "queueing", "adapters/process/ansible_plugins")]
    bases: dict[str, list[str]] = {}
    for path in WRITTEN:
        if not any(path.is_relative_to(part) for part in apart):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    bases[node.name] = [ast.unparse(base).rpartition(".")[2] for base in node.bases]

    def above(kind: str) -> set[str]:
        return {kind}.union(*(above(base) for base in bases.get(kind, ()) if base != kind))

    errors = {kind for kind in bases if above(kind) & BUILT_IN and not kind.startswith("_")}
    assert len(errors) > 100 and {kind for kind in errors if "HeadgateError" not in above(kind)} == {"JobExit"}
