"""Test how git reaches plain git servers with the configured settings."""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
from collections.abc import Awaitable, Mapping
from pathlib import Path

import msgspec

from headgate.cli.resources import connection_shapes, plain
from headgate.cli.settings import read


async def _settings(environment: Awaitable[Mapping[str, str]]) -> Mapping[str, str]:
    return await environment


def test_ssh_has_the_key_and_the_host_keys_of_the_connection(tmp_path: Path) -> None:
    place = tmp_path / "with blanks"
    place.mkdir()
    file = place / "headgate.conf"
    file.write_text(
        "[connection mine]\nbaseurl = ssh://git@git.example\nsshkey = the key\nknown_hosts = hosts\n"
        "[connection other]\nbaseurl = ssh://git@git.example\n[connection third]\nbaseurl = g:\nsshkey = /keys/k\n"
    )
    found = plain(read(file))
    assert found["other"].access is None and found["mine"].access is not None and found["third"].access is not None
    command = shlex.split(asyncio.run(_settings(found["mine"].access("git.example/code")))["core.sshCommand"])
    # ssh itself prints its effective options
    done = subprocess.run([*command, "-F", "none", "-G", "git.example"], capture_output=True, text=True, check=True)
    options = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert options["identityfile"] == str(place / "the key") and options["identitiesonly"] == "yes"
    assert options["batchmode"] == "yes" and options["stricthostkeychecking"] == "true"
    assert options["userknownhostsfile"].strip('"') == str(place / "hosts")
    third = asyncio.run(_settings(found["third"].access("code")))["core.sshCommand"]
    assert "/keys/k" in third and "KnownHosts" not in third


def test_passwords_in_addresses_are_nobody_elses(tmp_path: Path) -> None:
    file = tmp_path / "headgate.conf"
    file.write_text(
        "[connection e]\ndriver = elasticsearch\nuri = https://me:s3c@ret@a:9200, you:s3cret@b,https://we:s3,cret@c\n"
        "[connection g]\nbaseurl = https://me:s3cret@git.example\n"
        "[connection h]\nbaseurl = https://me:s3@c/ret@git.example/code\n"
    )
    shown = {one.name: one.baseurl for one in connection_shapes(read(file))}
    assert shown == {"e": "a:9200 b:9200 … c:9200", "g": "https://git.example", "h": "https://git.example/code"}


def test_a_forge_is_where_its_section_or_its_driver_says(tmp_path: Path) -> None:
    file = tmp_path / "headgate.conf"
    file.write_text(
        "[connection hub]\ndriver = github\n[connection lab]\ndriver = gitlab\nserver = http://127.0.0.1:8\n"
        "api_token = t\n"
        "[connection tea]\ndriver = gitea\nserver = x\nbaseurl = https://git.example/code\napi_token = t\n"
        "[connection own]\ndriver = github\nserver = github.example:8443\n"
    )
    shown = {one.name: one.baseurl for one in connection_shapes(read(file))}
    assert shown == {
        "hub": "https://github.com",
        "lab": "http://127.0.0.1:8",
        "tea": "https://git.example/code",
        "own": "https://github.example:8443",
    }


def test_requests_to_a_forge_are_logged_without_their_secrets(tmp_path: Path) -> None:
    file = tmp_path / "headgate.conf"
    file.write_text(
        "[connection hub]\ndriver = github\napi_token = s3cret\n"
        "[connection own]\ndriver = github\nserver = github.example\nrepo_cache = cache.example\n"
        "[connection review]\ndriver = gerrit\nserver = review.example\nuser = zuul\npassword = s3cret\n"
        "[connection other]\ndriver = gerrit\nserver = r.example\nuser = zuul\npassword = s3cret\n"
        "ssh_server = ssh.example\nport = 22\n"
        "[connection lab]\ndriver = gitlab\nserver = https://lab.example\napi_token = s3cret\n"
    )
    shown = json.loads(msgspec.json.encode(connection_shapes(read(file))))
    usual = {"name", "driver", "baseurl", "canonical_hostname", "source"}
    assert {one["name"]: {name: one[name] for name in one.keys() - usual} for one in shown} == {
        "hub": {"server": "github.com", "repo_cache": None},
        "own": {"server": "github.example", "repo_cache": "cache.example"},
        "review": {"server": "review.example", "ssh_server": "review.example", "port": 29418},
        "other": {"server": "r.example", "ssh_server": "ssh.example", "port": 22},
        "lab": {"server": "https://lab.example"},
    }
    assert "s3cret" not in str(shown)
