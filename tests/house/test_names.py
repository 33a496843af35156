"""One name, one thing: classes are unique in the project, and modules are called by nouns."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src/headgate"
PLUGINS = SOURCE / "adapters/process/ansible_plugins"
"""Ansible dictates the names of these classes and modules."""
MODULES = [
    path
    for path in sorted(SOURCE.rglob("*.py"))
    if PLUGINS not in path.parents and not path.stem.endswith(("_pb2", "_pb2_grpc"))
]
PACKAGES = sorted({path.parent for path in MODULES} - {SOURCE})
ALLOWED = {"testing", "queueing"}
"""Gerunds that the field uses as nouns."""
PARTICIPLES = {
    "asked", "begun", "built", "done", "found", "frozen", "given", "gone", "held", "hidden", "kept", "known", "leased",
    "left", "lost", "made", "meant", "passed", "past", "put", "said", "seen", "sent", "shown", "taken", "told", "tried",
    "vanished", "wanted", "written",
}  # fmt: skip


def test_public_classes_have_names_of_their_own() -> None:
    places = defaultdict[str, list[str]](list)
    for path in MODULES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(SOURCE)))
    assert not {name: paths for name, paths in places.items() if len(paths) > 1}


def test_no_module_or_package_is_a_bare_verb_form() -> None:
    assert not [str(path.relative_to(SOURCE)) for path in [*MODULES, *PACKAGES] if _is_verb_form(path.stem)]


def _is_verb_form(name: str) -> bool:
    return name not in ALLOWED and ((name.endswith("ing") and name not in {"string"}) or name in PARTICIPLES)
