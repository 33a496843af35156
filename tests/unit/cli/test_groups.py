"""Test grouped commands, suggestions for misspelt ones, completion and manual pages."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from headgate.base.errors import UserError
from headgate.cli.groups import own_command
from headgate.cli.main import COMMANDS, SECTIONS, group
from headgate.cli.pages.exports import roff


def run(*words: str) -> str:
    return CliRunner().invoke(group, words, prog_name="headgate").output


@pytest.mark.parametrize("words", [[], ["run"], ["keys"], ["queue", "peek"]])
def test_help_is_also_a_command(words: list[str]) -> None:
    assert run("help", *words) == run(*words, "--help") != ""


def test_help_is_also_a_command_of_a_group() -> None:
    assert run("queue", "help", "peek") == run("queue", "peek", "--help")


@pytest.mark.parametrize(
    ("words", "meant"),
    [(("buidls",), "builds"), (("enque",), "enqueue"), (("queue", "sevre"), "serve"), (("inventory", "fsk"), "fsck")],
)
def test_a_misspelt_command_brings_the_near_ones(words: tuple[str, ...], meant: str) -> None:
    ended = CliRunner().invoke(group, words, prog_name="headgate")
    assert ended.exit_code == 2
    assert f"No such command '{words[-1]}'" in ended.output and f"'{meant}'" in ended.output


def test_an_unknown_command_without_a_similar_one_gets_no_suggestion() -> None:
    assert "Did you mean" not in run("xyzzy")


def test_help_has_each_command_once_below_its_purpose() -> None:
    shown = run("--help")
    rows = [name for rows in SECTIONS.values() for name in rows]
    assert len(rows) == len(set(rows)) == len(COMMANDS)
    assert re.findall(r"^  ([a-z-]+)  ", shown.partition("--help ")[2], re.MULTILINE) == rows
    assert all(f"{title}:" in shown for title in SECTIONS)


@pytest.mark.parametrize("words", [("queue",), ("node", "request"), ("inventory", "machine"), ("autohold",), ("hook",)])
def test_help_of_a_group_cuts_no_summary(words: tuple[str, ...]) -> None:
    shown = run(*words, "--help").partition("\nCommands:\n")[2]
    assert shown and "..." not in shown and all(len(line) <= 80 for line in shown.splitlines())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_that_asks_headgate(shell: str) -> None:
    script = run("completion", shell)
    assert "_HEADGATE_COMPLETE" in script and "headgate" in script
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=script, text=True, check=True)


@pytest.mark.long
@pytest.mark.heavy
def test_completion_knows_commands_below_groups(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("headgate")
    environment = os.environ | {
        "_HEADGATE_COMPLETE": "bash_complete",
        "COMP_WORDS": "headgate queue pe",
        "COMP_CWORD": "2",
    }
    assert (
        subprocess.run([program], env=environment, capture_output=True, text=True, check=True).stdout == "plain,peek\n"
    )


def test_each_command_has_a_manual_page(tmp_path: Path) -> None:
    assert run("man", str(tmp_path)) == ""
    there = {path.name for path in tmp_path.iterdir()}
    assert {f"headgate-{name}.1" for name in COMMANDS} | {"headgate.1", "headgate-queue-peek.1"} <= there
    page = (tmp_path / "headgate-queue-seek.1").read_text()
    assert page.startswith('.TH "HEADGATE-QUEUE-SEEK" "1"') and ".SH OPTIONS" in page
    assert ".B headgate queue seek\n" in page and page.isascii()


def test_manual_pages_for_a_directory_that_cannot_be_made_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = CliRunner().invoke(group, ["man", str(tmp_path / "file" / "man1")], prog_name="headgate")
    assert isinstance(ended.exception, UserError) and str(ended.exception).endswith(
        "man1: cannot be written: Not a directory"
    )


def test_no_text_is_interpreted_as_a_roff_request() -> None:
    assert [roff(text) for text in (".de x", "'ig", "a\\b", "--url", "→")] == [
        "\\&.de x", "\\&'ig", "a\\eb", "\\-\\-url", "\\[u2192]",
    ]  # fmt: skip


def test_a_group_imports_its_commands_only_when_they_are_used() -> None:
    code = "import sys; from headgate.cli.main import group; print([m for m in sys.modules if 'headgate.web' in m])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
    assert isinstance(group, click.Group)


HEAVY = ("aiohttp", "ansible", "grpc", "httpx", "pygit2", "sqlalchemy", "starlette", "uvicorn")
QUICK = ("propose", "approve", "recheck", "hook", "enqueue", "promote", "close", "status", "builds", "completion")


@pytest.mark.long
@pytest.mark.heavy
@pytest.mark.parametrize("command", QUICK)
def test_a_quick_command_loads_no_server_and_no_library_of_one(command: str) -> None:
    code = f"""import sys
from headgate.cli.groups import own_command
from headgate.cli.main import COMMANDS, group
module, _ = COMMANDS[{command!r}][0].split(":")
__import__(module)
print(*sorted(set({HEAVY}) & set(sys.modules)))"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


@pytest.mark.heavy
def test_commands_of_queues_import_aiohttp_only_to_send_a_request(tmp_path: Path) -> None:
    code = """import sys
from click.testing import CliRunner
from headgate.cli.main import group
ended = CliRunner().invoke(group, ["queue", "pause", "orders"])
print(ended.exception, "aiohttp" in sys.modules)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.startswith("no worker knows a partition orders") and done.stdout.endswith(" False\n")


MISSING = (
    (("inventory", "serve"), "grpc", "headgate inventory serve needs pip install 'headgate[inventory]'"),
    (("inventory", "machine", "list"), "grpc", "headgate inventory needs pip install 'headgate[inventory]'"),
    (("queue", "list"), "aiohttp", "headgate queue needs pip install 'headgate[queues]'"),
    (("worker", "-c", "none.conf"), "aiohttp", "headgate worker needs pip install 'headgate[queues]'"),
    (
        ("map", "tree", "--store", "etcd://127.0.0.1:1"),
        "grpc",
        "a store etcd://HOST:PORT,…/PREFIX needs pip install 'headgate[etcd]'",
    ),
    (("lsp",), "pygls", "headgate lsp needs pip install 'headgate[editor]'"),
    (("demo", "--forge", "gitea"), "aiohttp", "headgate demo --forge gitea needs pip install 'headgate[demo]'"),
)


@pytest.mark.long
@pytest.mark.heavy
@pytest.mark.parametrize(("words", "absent", "message"), MISSING, ids=[" ".join(row[0]) for row in MISSING])
def test_a_command_names_the_extra_that_it_needs(
    words: tuple[str, ...], absent: str, message: str, tmp_path: Path
) -> None:
    begin = f"import sys; sys.argv[0] = 'headgate'; sys.modules[{absent!r}] = None"
    code = f"{begin}; from headgate.cli.main import main; main()"
    ended = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == 69
    assert ended.stderr.partition(": ")[2] == f"{message} (the package {absent} is not installed)\n"


@pytest.mark.long
@pytest.mark.heavy
def test_without_packages_of_extras_every_command_has_its_help_and_its_page(tmp_path: Path) -> None:
    extras = ["grpc", "grpc_health", "grpc_reflection", "jsonschema_rs", "aiohttp", "psycopg", "ansible", "apprise"]
    code = f"import sys; sys.modules.update(dict.fromkeys({extras})); from headgate.cli.main import main; main()"
    subprocess.run([sys.executable, "-c", code, "man", str(tmp_path)], check=True)
    assert (tmp_path / "headgate-inventory-machine.1").exists()
    assert "headgate[queues]" in (tmp_path / "headgate-queue.1").read_text()


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Return an installed command in a directory outside of PATH."""
    path = tmp_path / "my venv" / "bin" / "headgate"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_a_command_outside_of_the_path_is_named_by_its_path(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(program.parent.parent)
    monkeypatch.setattr("sys.argv", ["bin/headgate", "demo"])
    assert own_command() == "bin/headgate"
    assert shlex.split(own_command(elsewhere=True)) == [str(program)]


def test_another_installation_in_the_path_is_not_meant(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "headgate"
    other.write_bytes(program.read_bytes())
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.argv", [str(program)])
    assert shlex.split(own_command()) == [str(program)]


def test_in_the_path_the_name_is_enough(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "headgate").symlink_to(program)  # as pipx installs it
    monkeypatch.setenv("PATH", str(tmp_path))
    for argv in (str(program), str(tmp_path / "headgate"), "headgate", "/usr/lib/headgate/__main__.py"):
        monkeypatch.setattr("sys.argv", [argv])
        assert own_command() == "headgate"
