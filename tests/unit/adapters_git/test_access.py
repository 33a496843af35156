"""Test the options that git gets for a single command to reach a server."""

from __future__ import annotations

import subprocess

from headgate.adapters.git.command import environment, with_config

HEADER = "http.https://hub.example/.extraHeader"


def config(of: dict[str, str], name: str) -> str:
    done = subprocess.run(["git", "config", "--get-all", name], env=of, capture_output=True, text=True)
    return done.stdout.strip()


def test_git_has_the_settings_and_keeps_those_of_the_user() -> None:
    mine = {"PATH": "/usr/bin:/bin", "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "a.b", "GIT_CONFIG_VALUE_0": "kept"}
    found = with_config(environment(True, mine), {HEADER: "Authorization: Basic c2VjcmV0", "c.d": "also"})
    assert config(found, HEADER) == "Authorization: Basic c2VjcmV0"
    assert (config(found, "a.b"), config(found, "c.d")) == ("kept", "also")


def test_a_key_of_the_connection_goes_before_the_way_of_the_user() -> None:
    mine = {"PATH": "/usr/bin:/bin", "GIT_SSH_COMMAND": "ssh -i mine", "GIT_SSH": "mine"}
    found = with_config(environment(True, mine), {"core.sshCommand": "ssh -i theirs"})
    assert not {"GIT_SSH_COMMAND", "GIT_SSH"} & found.keys() and config(found, "core.sshCommand") == "ssh -i theirs"


def test_without_settings_nothing_changes() -> None:
    mine = {"PATH": "/usr/bin:/bin", "GIT_SSH_COMMAND": "ssh -i mine"}
    assert with_config(environment(True, mine), {}) == environment(True, mine)
