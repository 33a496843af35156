"""Test that an object's state belongs to its class: who may set a field, and how many fields a class has."""

from __future__ import annotations

from tests.house.sources import WRITTEN, facts, name

PRODUCT = [path for path in WRITTEN if "testing" not in path.parts]
"""Modules without those for tests, whose records of a world are for everybody to change."""

ELSEWHERE = {
    "adapters/nodes/clouds/aws/uploads.py": "elements of an XML document",
    "adapters/nodes/clouds/podman/guest.py": "members of an archive, of Python's tarfile",
    "adapters/process/runner.py": "the workspace of its build: nodeset and variables depend on the lent machines",
    "adapters/process/zygotes/program.py": "objects of Ansible",
    "cli/inventory/objects.py": "protobuf messages",
    "cli/inventory/places.py": "a command of click",
    "cli/launch/components.py": "the process that this module assembles",
    "cli/launch/machines.py": "the process that this module assembles",
    "cli/launch/run.py": "the exit status, which depends on the command and not on the error",
    "cli/logs.py": "records of Python's logging",
    "cli/scenario/forges/standins.py": "the stand-ins of a demonstration, which this module prepares",
    "config/layout.py": "the copy of a layout that this module completes before anybody else sees it",
}
"""Modules that set fields of other modules' classes, or fields of the same name of foreign classes, and which."""

FIELDS_MAX = 15
WIDE = {"Process", "Workspace"}
"""Classes with more fields: add none."""


def test_a_field_is_set_by_the_module_of_its_class() -> None:
    """Other modules call a method, whose name says why; settings are given to the constructor."""
    known = {field for path in PRODUCT for field in facts(path).fields}
    found = dict[str, list[str]]()
    for path in PRODUCT:
        foreign = known - facts(path).fields
        if lines := [f"{line}: {text}" for line, text, field in facts(path).written if field in foreign]:
            found[name(path)] = lines
    assert found.keys() == ELSEWHERE.keys(), found


def test_a_class_with_mutable_fields_has_few_of_them() -> None:
    """Settings are a frozen class of their own, and state belongs to the smallest class that needs it."""
    found = {kind for path in PRODUCT for kind, fields in facts(path).mutable if fields > FIELDS_MAX}
    assert found == WIDE
