"""Test rules of the repository: size limits, purity, names, paths."""

from __future__ import annotations

import importlib
import re
import tomllib

import pytest

from headgate.base.errors import UserError
from headgate.cli.main import COMMANDS, group
from headgate.cli.pages.docs import pages
from tests.house.sources import MODULES, ROOT, SOURCE, facts, name

BANNED_NAMES = {"util", "utils", "helper", "helpers", "manager", "managers", "handler", "handlers", "common", "misc"}
IMPURE = {"asyncio", "time", "random", "os", "socket", "logging", "threading", "subprocess"}
TASKS = {
    "adapters/ansible/install.py": "installations under way end with the runner of their builds",
    "adapters/forges/gerrit/watch.py": "the ear at the stream, and looks under way, end with who reads what is seen",
    "adapters/forges/gerrit/stream.py": "what ssh complains, ended with it",
    "adapters/forges/watch.py": "looks end with the loop that reads them",
    "adapters/git/engine.py": "one look at a repository, shared by the builds on one state",
    "adapters/git/forge.py": "watchers end with the loop that reads them",
    "adapters/judge/subprocess_judge.py": "what listens to the process ends with it",
    "adapters/logs/upload.py": "parts end with their build, uploads with the executor's work",
    "queue/messages/board.py": "one writer at a time",
    "adapters/nodes/clouds/aws/images.py": "what is sent ends with its driver",
    "adapters/nodes/clouds/openstack/images.py": "what is sent ends with its driver",
    "adapters/nodes/clouds/podman/driver.py": "images that are fetched end with their driver",
    "adapters/nodes/clouds/podman/engine.py": "imports end with their driver",
    "adapters/process/containers/box.py": "a container ends with its playbook, or ends it",
    "adapters/process/network/sockets.py": "connections end with their listener, questions with the relay",
    "adapters/process/network/networks.py": "listeners end with the network they are in",
    "adapters/process/phases.py": "the time of those that clean up ends with the phase",
    "adapters/process/processes.py": "a process, its output, its cancellation: one of them ends the others",
    "adapters/process/workspace.py": "checkouts of one build in their group",
    "adapters/process/zygotes/pool.py": "what is begun ahead ends with the pool",
    "base/tasks.py": "this is where tasks get their parents",
    "cli/scenario/audience.py": "a server and a worker that end with the demo",
    "cli/scenario/machines.py": "the gate beside its demonstration",
    "cli/scenario/demo.py": "the gate and the play",
    "services/merger.py": "work that takes long, and ends with its claim",
    "services/executor.py": "the watch for a cancel ends with its build",
    "services/scheduler/proposals.py": "questions under way end with their pipeline",
    "services/scheduler/verdicts.py": "what is looked up ends with its pipeline",
    "services/scheduler/scheduler.py": "works come and go with the layout and with other schedulers",
    "queue/workers/shares.py": "partitions end with the sharing that took them",
    "services/worker.py": "claims end with their worker",
    "services/nodes/images/keeper.py": "what it waits for ends with the wait",
    "testing/day/people.py": "what people are about to do ends with their day",
    "services/nodes/accounts.py": "steps of machines end with the making",
    "services/nodes/machines/maker.py": "what it waits for ends with the wait",
    "services/nodes/probes.py": "probes end with the probing",
    "services/nodes/launcher.py": "preparing and cleaning end with the term of the launcher",
    "store/sqlite.py": "one writer at a time",
    "store/store.py": "the keeper of a session",
    "store/zookeeper/backend.py": "views, each ended with its last reader",
    "store/zookeeper/session.py": "a connection and its pings, also between those of a lease's owner",
    "store/etcd/link.py": "waiting for any server ends with the first that can be reached",
    "store/zookeeper/commits.py": "the sweeper ends with its backend",
    "testing/gate.py": "the gate under test",
    "testing/servers/faults.py": "one connection each",
    "testing/servers/kubernetes/containers.py": "what is told to a command, ended with it",
    "testing/queues/harness.py": "workers under test; whoever posts ends with the fleet",
    "testing/queues/simulator.py": "processes of the simulation, and requests that arrive late",
    "testing/backends.py": "what is under way to the store arrives, whatever becomes of its sender",
    "queue/workers/calls.py": "who waits for a place leaves when asked to",
    "queue/workers/partition.py": "a record of the try under way, ended with it",
    "testing/sim/simulation.py": "processes of the simulation",
    "testing/stores/machine.py": "a lease that runs out while others are renewed",
    "testing/stores/wire.py": "the mirror of each side",
    "testing/stores/twin.py": "watches beside what they watch",
    "testing/inventory/calls.py": "the server that is called",
    "testing/inventory/lessees.py": "servers and users of the simulation",
    "testing/forges/github/mail.py": "the postman ends with the forge",
    "testing/nodes/machinesim.py": "processes of the simulation, and what they sent before they died",
    "testing/nodes/doubles.py": "the mirror of who asks ends with the asking",
    "web/peers/connections.py": "connections on their way in end with who accepts them",
    "testing/nodes/imageworld.py": "the model ends with its run",
    "testing/nodes/machineworld.py": "what a simulation runs ends with it",
    "web/viewers/audience.py": "who shows a tenant ends with the last who looks on; one compression, shared by all",
    "web/review/service.py": "one question to a merger, shared by all who ask",
    "web/routes/changes.py": "one question to the history, shared by all who ask",
    "web/server.py": "the server ends with its caller",
    "queue/workers/storeless.py": "a lease is worked under for as long as there is something to do",
}
"""Modules that create tasks by hand, each ended in the same place, and why."""


def test_no_cancellation_can_be_lost() -> None:
    """`asyncio.wait_for` of Python 3.11 swallows a cancellation that comes as the awaited task ends."""
    assert not [name(path) for path in MODULES if "asyncio.wait_for(" in path.read_text()]


def test_only_one_module_cancels_a_task_that_gathers() -> None:
    """Cancelling a task that gathers cancels the gathered tasks again: `base.tasks.end` does not. Jobs of users may
    need it."""

    both = {name(p) for p in MODULES if "testing" not in p.parts and facts(p).cancelling}
    assert both == {"queue/workers/shares.py"}


def test_modules_have_at_most_400_lines() -> None:
    assert not [name(p) for p in MODULES if p.read_text().count("\n") > 400]


def test_functions_have_at_most_60_lines() -> None:
    assert not [f"{name(p)} {function}" for p in MODULES for function, lines, _ in facts(p).functions if lines > 60]


def test_classes_have_at_most_15_public_methods() -> None:
    vocabularies = {"Conformance", "Play"}  # a suite of examples, and the words of the plays
    classes = [(p, *one) for p in MODULES for one in facts(p).classes]
    assert not [f"{name(p)} {kind}" for p, kind, methods in classes if methods > 15 and kind not in vocabularies]


def test_nesting_is_at_most_4() -> None:
    assert not [f"{name(p)} {one} {depth}" for p in MODULES for one, _, depth in facts(p).functions if depth > 4]


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert not [name(p) for p in MODULES if p.stem in BANNED_NAMES]


@pytest.mark.parametrize("package", ["gate", "config", "queueing", "inventory"])
def test_the_core_is_pure(package: str) -> None:
    modules = (SOURCE / package).rglob("*.py")
    assert not [(name(p), m) for p in modules for m in sorted(facts(p).imports & IMPURE)]


PUBLIC = ("headgate.queue", "headgate.queueing", "headgate.stock")
"""Names that other programs import."""


@pytest.mark.parametrize("package", PUBLIC)
def test_a_public_package_declares_its_names(package: str) -> None:
    found = importlib.import_module(package)
    assert sorted(found.__all__) == found.__all__ and all(hasattr(found, name) for name in found.__all__)
    assert all(getattr(found, name).__doc__ for name in found.__all__ if isinstance(getattr(found, name), type))


def test_pages_import_only_public_names() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs" / "how-to").glob("*.md")]
    imported = re.compile(r"^\s*from (headgate[\w.]*) import (.+)$", re.MULTILINE)
    found = [(page.name, *one) for page in pages for one in imported.findall(page.read_text())]
    assert found and not [
        one
        for one in found
        if one[1] not in PUBLIC
        or not {name.strip() for name in one[2].split(",")} <= set(importlib.import_module(one[1]).__all__)
    ]


def test_every_kind_of_error_has_an_exit_status_that_the_page_explains() -> None:
    documented = set(map(int, re.findall(r"^\| (\d+) \|", (ROOT / "docs/reference/cli.md").read_text(), re.MULTILINE)))
    kinds = {UserError, *UserError.__subclasses__()}
    assert {kind.status for kind in kinds} <= documented and {kind.status for kind in kinds} >= {1, 69, 75}


def test_product_code_knows_no_test_library() -> None:
    product = (p for p in MODULES if "testing" not in p.parts and p.stem != "testing")
    assert not [name(p) for p in product if facts(p).imports & {"pytest", "hypothesis", "unittest", "mock"}]


def test_paths_of_the_store_are_written_in_the_map_alone() -> None:
    literal = re.compile(r"^/?(zuul|mozilla|runm/metadata)/|^/(zuul|mozilla|runm/metadata)$")
    outside = [p for p in MODULES if not {"map", "testing"} & set(p.parts)]
    assert not [f"{name(p)}:{line}" for p in outside for line, text in facts(p).strings if literal.match(text)]


def test_tasks_are_made_where_the_list_says() -> None:
    makes = re.compile(r"\b(ensure_future|create_task)\(")
    assert {name(p) for p in MODULES if makes.search(p.read_text())} == set(TASKS)


LEFT = ("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK", "NotImplemented" + "Error")


def test_no_module_contains_a_reminder_for_later() -> None:
    words = re.compile(rf"\b({'|'.join(LEFT)})\b")
    assert not [name(p) for p in MODULES if words.search(p.read_text())]


def test_unit_tests_do_not_sleep_or_patch() -> None:
    bad = re.compile(r"mock\.patch|time\.sleep|asyncio\.sleep\([^0)]")
    texts = {str(p): p.read_text() for p in (ROOT / "tests" / "unit").rglob("*.py")}
    assert not [
        p for p, text in texts.items() if bad.search(text) and not re.search("run_virtual|on_site", text)
    ]  # virtual time is free


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {
        re.split(r"[><=\[]", d)[0] for d in (*project["dependencies"], *project["optional-dependencies"]["ansible"])
    }
    table = (ROOT / "ARCHITECTURE.md").read_text()
    assert not [n for n in names if n not in table]


def test_the_readme_names_only_commands_that_exist() -> None:
    named = set(re.findall(r"^headgate (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert named <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_can_be_loaded(command: str) -> None:
    import click

    assert group.get_command(click.Context(group), command) is not None  # type: ignore[attr-defined]


def test_generated_pages_are_as_they_would_be_written() -> None:
    assert not [path for path, text in pages().items() if (ROOT / path).read_text() != text], "write them: make docs"


def test_certificates_are_loaded_in_one_place() -> None:
    """OpenSSL waits for pipes, and asks the terminal for passphrases; `base/certificates` prevents both."""
    found = [
        name(path)
        for path in MODULES
        if re.search(r"\.load_(cert_chain|verify_locations)\(|cafile=", path.read_text())
        and path.parts[len(SOURCE.parts)] != "testing"
    ]
    assert found == ["base/certificates.py"]
