"""Test `headgate lsp`: the messages to an editor while a configuration is being written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.cli.editor.session import EditorSession
from headgate.cli.offline.othertrees import trees_below
from headgate.cli.offline.reader import ReadingOptions
from headgate.testing.clock import DEADLINE_S

from .conftest import APP, OPS

TEMPLATE = """
- project-template: {name: usual, check: {jobs: [unit]}}
- secret: {name: key, data: {a: b}}
- job: {name: deploy, parent: unit, secrets: [key], run: d.yaml, nodeset: small}
- project: {templates: [usual], gate: {jobs: [unit, deploy: {dependencies: unit}]}}
"""


@pytest.fixture
def session(offline):
    def make(**texts):
        made = offline(**texts)
        found = ReadingOptions(None, made.root / "tenants.yaml", made.repos, None).load()
        at = trees_below(found.tenants["acme"], made.repos)
        return EditorSession(found.tenants, at, complete=True), made.repos / "hub/app/zuul.yaml"

    return make


def problems_of(session, path):
    """[(line, column, text)] of the file, after everything was frozen."""
    for _ in session.refresh(session.file(path), everything=True):
        pass
    return [(one.extent.line, one.extent.column, one.error.text) for one in session.problems(path)[path]]


def test_an_error_appears_while_typing_and_goes_when_it_is_fixed(session):
    made, path = session()
    assert problems_of(made, path) == []
    made.write(path, APP.replace("nodeset: small", "nodeset: smal"))
    assert problems_of(made, path) == [(2, 46, "the nodeset 'smal' is not defined; did you mean 'small'?")]
    made.write(path, APP.replace("run: unit.yaml, ", ""))
    assert [(line, text.partition(":")[0]) for line, _, text in problems_of(made, path)] == [
        (3, "job unit has nothing to run")
    ]
    made.write(path, APP)
    assert problems_of(made, path) == []


def test_a_new_pipeline_is_known_while_it_is_typed(session):
    made, path = session()
    made.write(path, APP.replace("gate:", "late:"))
    assert [text.partition(":")[0] for _, _, text in problems_of(made, path)] == [
        "there is no pipeline 'late' in any tenant"
    ]
    made.write(path.parents[1] / "ops/zuul.yaml", OPS.replace("name: gate", "name: late"))
    assert problems_of(made, path) == []


def test_an_error_caused_by_another_file_appears_in_the_open_one(session):
    made, path = session()
    ops = path.parents[1] / "ops/zuul.yaml"
    made.write(ops, ops.read_text().replace("name: small", "name: tiny"))
    assert any("'small' is not defined" in text for _, _, text in problems_of(made, path))
    made.write(ops, None)
    assert problems_of(made, path) == [], "it was closed without being saved"


def test_a_consequence_names_its_cause(session):
    made, path = session()
    made.write(path, APP.replace("run: unit.yaml", "runs: unit.yaml"))
    (first, second) = made.problems(path)[path]
    assert not first.because and "a job has no key 'runs'" in second.because


@pytest.mark.parametrize(
    ("word", "text", "line"),
    [
        ("parent: unit", "unit  in check of app on master", 2),
        ("jobs: [unit]", "unit  in check of app on master", 2),
        ("dependencies: unit", "unit  in check of app on master", 2),
        ("nodeset: small", "nodes: [{name: controller, label: debian}]", 13),
        ("templates: [usual]", "project-template: {name: usual", 5),
        ("secrets: [key]", "secret: {name: key", 6),
    ],
)
def test_a_name_is_explained_and_followed(session, word, text, line):
    made, path = session(app=APP + TEMPLATE)
    lines = path.read_text().splitlines()
    row = next(n for n, one in enumerate(lines) if word in one)
    column = lines[row].index(word) + len(word.partition(" ")[0]) + 2 + ("[" in word)
    assert text in made.hover(path, row + 1, column + 0)
    (found,) = {(at.path.parent.name, at.line) for at in made.definition(path, row + 1, column)}
    assert found[1] == line


def test_words_without_a_meaning_have_no_explanation(session):
    made, path = session()
    assert made.hover(path, 2, 1) == "" and made.definition(path, 99, 1) == []
    assert made.hover(path.parent / "README.md", 1, 1) == ""


def test_a_file_of_no_tenant_is_checked_for_its_form(tmp_path):
    made, path = EditorSession({}, {}, complete=False), tmp_path / ".zuul.yaml"
    made.write(path, "- job: {name: a, rnu: x}\n")
    assert [one.extent[:2] for one in made.problems(path)[path]] == [(1, 18)]
    other = tmp_path / "playbook.yaml"
    made.write(other, "- hosts: all\n")
    assert made.problems(other) == {other: []}


@pytest.mark.long
@pytest.mark.heavy
def test_the_language_server_answers_an_editor(offline):
    """The real program, spoken to as editors do; columns are UTF-16."""
    made = offline()
    path = made.repos / "hub/app/zuul.yaml"
    text = APP.replace("nodeset: small", "description: 😀, nodeset: smal")
    uri = path.as_uri()
    words = ["lsp", "--tenant-config", made.root / "tenants.yaml", "--repos", made.repos]
    with Client([Path(sys.executable).parent / "headgate", *words]) as client:
        abilities = client.ask("initialize", processId=None, rootUri=None, capabilities={})["capabilities"]
        assert abilities["hoverProvider"] and abilities["definitionProvider"]
        client.tell("initialized")
        document = {"uri": uri, "languageId": "yaml", "version": 1, "text": text}
        client.tell("textDocument/didOpen", textDocument=document)
        found = client.notification("textDocument/publishDiagnostics")
        (problem,) = found["diagnostics"]
        assert found["uri"] == uri and problem["code"] == "Nodeset Not Found" and problem["source"] == "headgate"
        start = text.splitlines()[1].index("smal") + 1  # the emoji counts as two units
        assert problem["range"] == {
            "start": {"line": 1, "character": start},
            "end": {"line": 1, "character": start + 4},
        }
        fixed = {"textDocument": {"uri": uri, "version": 2}, "contentChanges": [{"text": APP}]}
        client.tell("textDocument/didChange", **fixed)
        while client.notification("textDocument/publishDiagnostics")["diagnostics"]:
            pass
        at = {"textDocument": {"uri": uri}, "position": {"line": 1, "character": 46}}
        (place,) = client.ask("textDocument/definition", **at)
        assert place["uri"].endswith("/hub/ops/zuul.yaml")
        moved = {"textDocument": {"uri": uri, "version": 3}, "contentChanges": [{"text": f"# more\n{APP}"}]}
        client.tell("textDocument/didChange", **moved)
        at["position"]["line"] += 1
        assert client.ask("textDocument/definition", **at) == [place], "what is on the screen, judged or not"
        client.ask("shutdown")


class Client:
    """JSON-RPC with a header before each message."""

    def __init__(self, command):
        self._command = [str(word) for word in command]
        self._waiting = []
        self._number = 0

    def __enter__(self):
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(self, *_):
        self.tell("exit")
        self._process.stdin.close()
        try:
            self._process.wait(DEADLINE_S)
        finally:
            self._process.kill()
            self._process.stdout.close()

    def tell(self, method, **params):
        self._send({"jsonrpc": "2.0", "method": method, "params": params})

    def ask(self, method, **params):
        self._number += 1
        self._send({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        while (message := self._read()).get("id") != self._number:
            self._waiting.append(message)
        assert "error" not in message, message
        return message["result"]

    def notification(self, method):
        while True:
            message = self._waiting.pop(0) if self._waiting else self._read()
            if message.get("method") == method:
                return message["params"]

    def _send(self, message):
        body = json.dumps(message).encode()
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()

    def _read(self):
        length = 0
        while (line := self._process.stdout.readline()) not in (b"\r\n", b""):
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        assert length, "the server has ended"
        return json.loads(self._process.stdout.read(length))
