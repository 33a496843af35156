"""Test the settings file: errors name file, line, and the probable meaning."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from headgate.adapters.reporters.registry import REPORTERS
from headgate.base.errors import UserError
from headgate.cli.check.check import command as check
from headgate.cli.init import command as init
from headgate.cli.main import group
from headgate.cli.settings import find, read, read_or_defaults


def settings(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "headgate.conf"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[schedular]\n", r"headgate.conf:1: unknown section \[schedular\]; did you mean 'scheduler'"),
        ("[web]\nport = 1\nporte = 9000\n", r"headgate.conf:3: unknown option 'porte' in \[web\]; did you mean 'port'"),
        ("[web]\nport = many\n", r"headgate.conf:2: port must be a whole number, not 'many'"),
        ("[web]\nport = 9000.5\n", r"headgate.conf:2: port must be a whole number"),
        ("[web]\nport = 9000  # ours\n", r"headgate.conf:2: port .*'9000  # ours'; put a comment on its own line"),
        ("[web]\nport = 70000\n", r"headgate.conf:2: port must be from 0 to 65535, not '70000'"),
        ("[executor]\ndefault_timeout = nan\n", r"headgate.conf:2: default_timeout must be a number of at least 0"),
        ("[executor]\ndefault_timeout = inf\n", r"headgate.conf:2: default_timeout must be a number of at least 0"),
        ("[executor]\n# builds = 1\nlog_dir = builds\nbuilds = -1\n", r"headgate.conf:4: builds must be from 1"),
        ("[web]\nport = 1\nport = 2\n", r"headgate.conf:3: port is set twice in \[web\]"),
        ("[web]\n[web]\n", r"headgate.conf:2: \[web\] occurs twice"),
        ("[scheduler]\ntenant_config = a\0b\n", r"headgate.conf:2: there is a NUL character; is this a text file\?"),
        ("[web]\nport\n", r"headgate.conf:2: .* is neither a section heading"),
        ("[DEFAULT]\nport = 1\n", r"headgate.conf:1: \[DEFAULT\] is not supported"),
        ("[connection]\ndriver = git\n", r"headgate.conf:1: unknown section \[connection\]; it needs a name"),
        ("[web]\nroot = %(ZUUL_NOT_SET)s\n", r"headgate.conf:2: the environment variable ZUUL_NOT_SET is not set"),
        ("[web]\nroot = %(HOME)s\n", r"headgate.conf:2: %\(HOME\)s: only variables whose names begin with ZUUL_"),
        ("[auth a]\nskew = long\n", r"headgate.conf:2: skew must be a number, not 'long'"),
        ("[executor]\nsandbox = maybe\n", r"headgate.conf:2: sandbox must be one of auto, bwrap, container, none"),
        ("[connection x]\ndriver = git\n", r"\[connection x\] needs a baseurl"),
        ("[connection x]\ndriver = inventory\n", r"\[connection x\] needs a project: the project whose objects"),
        ("[connection x]\ndriver = inventory\nproject = lab\n", r"\[connection x\] needs a partition"),
        (
            "[connection x]\ndriver = queue\nbaseurl = here\n",
            r"\[connection x\] needs a url: the URL to post",
        ),
        (
            "[connection x]\ndriver = kafka\n",
            rf"driver must be one of git, .*queue, inventory, {', '.join(REPORTERS)}, not 'kafka'",
        ),
        ("[notices]\nwaiting_max = 0\n", r"headgate.conf:2: waiting_max must be from 1"),
        ("[published_events]\nwaiting_max = 0\n", r"headgate.conf:2: waiting_max must be from 1"),
        ("[web]\nroot = https://[x\n", r"headgate.conf:2: root is a URL with an invalid host or port"),
        ("[connection x]\ndriver = github\nserver = https://git.example:99999\n", r"headgate.conf:3: server is a URL"),
        ("port = 1\n", r"this is not a settings file"),
    ],
)
def test_errors_of_settings_are_reported(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read(settings(tmp_path, text))


def test_a_section_is_read_under_its_former_name_with_one_warning(tmp_path: Path) -> None:
    found = read(settings(tmp_path, "[web]\n\n[notices]\nurl = http://127.0.0.1:5000/v1/a/\n"))
    assert found.get("published_events", "url") == "http://127.0.0.1:5000/v1/a/"
    (warning,) = found.warnings
    assert warning.startswith(f"{tmp_path}/headgate.conf:3: [notices] is now called [published_events]")
    assert read(settings(tmp_path, "[published_events]\nwaiting_max = 5\n")).warnings == ()


def test_a_section_under_both_names_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    both = settings(tmp_path, "[notices]\ninventory = true\n[published_events]\nwaiting_max = 5\n")
    with pytest.raises(UserError, match=r"headgate.conf:1: \[notices\] is .*in line 3; put the options together under"):
        read(both)


def test_check_warns_of_a_former_name(tmp_path: Path) -> None:
    (tmp_path / "tenants.yaml").write_text("[]\n")
    file = settings(tmp_path, "[notices]\n")
    printed = CliRunner().invoke(check, ["--config", str(file)]).output
    assert printed.count("headgate.conf:1: [notices] is now called [published_events]") == 1


def test_of_a_wrong_url_no_password_is_shown(tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        read(settings(tmp_path, "[database]\ndburi = postgresql://headgate:s3cret@[db/headgate\n"))
    assert "dburi is a URL" in str(raised.value) and "s3cret" not in str(raised.value)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    found = read(settings(tmp_path, "[scheduler]\nstate_dir = here\n"))
    assert found.store_url == f"sqlite:///{tmp_path}/here/headgate.sqlite"
    assert found.tenant_config == tmp_path / "tenants.yaml"
    assert found.dburi == f"sqlite:///{tmp_path}/here/history.sqlite"
    elsewhere = read(
        settings(tmp_path, "[database]\ndburi = sqlite:///past.sqlite\n[store]\nurl = sqlite:///s.sqlite\n")
    )
    assert elsewhere.dburi == f"sqlite:///{tmp_path}/past.sqlite"
    assert elsewhere.store_url == f"sqlite:///{tmp_path}/s.sqlite"
    named = read(settings(tmp_path, "[database]\ndburi = postgresql://me@db/history\n"))
    assert named.dburi == "postgresql://me@db/history"


def test_the_environment_can_be_named_in_values(tmp_path: Path) -> None:
    text = "[database]\ndburi = postgresql://me:%(HEADGATE_PASSWORD)s@db/50%%\n"
    assert read(settings(tmp_path, text), {"HEADGATE_PASSWORD": "s%(x)s"}).dburi == "postgresql://me:s%(x)s@db/50%"


def test_without_settings_three_lines_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        find(None, {})
    assert len(str(caught.value).splitlines()) == 3 and "headgate init" in str(caught.value)


def test_settings_are_found_from_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outer, inner = settings(tmp_path, ""), tmp_path / "work/tree"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert find(None, {}) == outer
    (inner / "headgate.conf").write_text("")
    assert find(None, {}) == Path("headgate.conf")


ALONE = (
    ("queue", "serve", "--listen", "nowhere"),
    ("inventory", "serve", "--store", "nothing"),
    ("inventory", "fsck", "--store", "nothing"),
)
"""Commands that need no settings, with options that end them after the settings are read."""


@pytest.mark.parametrize("command", ALONE, ids=" ".join)
@pytest.mark.parametrize("place", ["headgate.conf", "home/.config/headgate/headgate.conf", "named.conf"])
def test_a_command_that_needs_no_settings_reads_those_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HEADGATE_CONFIG", raising=False)
    if place == "named.conf":
        monkeypatch.setenv("HEADGATE_CONFIG", place)
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).write_text("[schedular]\n")
    result = CliRunner().invoke(group, command)
    assert isinstance(result.exception, UserError) and f"{place}:1: unknown section" in str(result.exception)


def test_defaults_stand_for_a_file_that_nobody_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_or_defaults(None, {}).state_dir == tmp_path / "state"
    for given, environment in (("none.conf", {}), (None, {"HEADGATE_CONFIG": "none.conf"})):
        with pytest.raises(UserError, match=r"none\.conf: no such settings file"):
            read_or_defaults(given, environment)


def test_the_example_is_valid_and_never_overwritten(tmp_path: Path) -> None:
    done = CliRunner().invoke(init, [str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert read(tmp_path / "headgate.conf").connections["local"]["baseurl"] == "repositories"
    assert "git push origin HEAD:refs/for/master/" in done.output
    assert CliRunner().invoke(check, ["--config", str(tmp_path / "headgate.conf")]).exit_code == 0
    again = CliRunner().invoke(init, [str(tmp_path)])
    assert isinstance(again.exception, UserError) and "nothing was written" in str(again.exception)


def test_a_program_may_print_the_tenant_file(tmp_path: Path) -> None:
    program = tmp_path / "tenants.sh"
    file = settings(tmp_path, "[scheduler]\ntenant_config_script = tenants.sh\n")
    for text, words in (
        ("echo '- tenant: {name: a}'", "tenant a: 0 projects"),
        ("echo '- tenant: {name: a, sauce: b}'", "did you mean 'source'"),
        ("echo alas >&2; exit 3", "the tenant_config_script ended with status 3: alas"),
    ):
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o700)
        assert words in CliRunner().invoke(check, ["--config", str(file)]).output
    program.unlink()
    assert "the tenant_config_script cannot be run" in CliRunner().invoke(check, ["--config", str(file)]).output


def test_all_errors_are_reported_together(tmp_path: Path) -> None:
    """All errors of a file that comes from elsewhere are reported at once."""
    text = "[webb]\nport = 1\n[web]\nporte = 1\nport = x\n[connection a]\ndriver = git\n[connection 'a']\nbaseurl = x\n"
    with pytest.raises(UserError) as raised:
        read(settings(tmp_path, text))
    lines = str(raised.value).splitlines()
    assert [line.split(": ")[0].rpartition(":")[2] for line in lines] == ["1", "4", "5", "6", "8"]
