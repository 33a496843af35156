"""Test the settings of a Gerrit connection."""

from __future__ import annotations

from base64 import b64decode

import pytest

from headgate.adapters.forges.gerrit.driver import git_connection
from headgate.adapters.forges.gerrit.server import Server, change_number
from headgate.base.errors import UserError

LEAST = {"driver": "gerrit", "server": "review.example", "user": "headgate", "password": "s3cret"}


def server(**settings: str) -> Server:
    return Server.of("review", {**LEAST, **settings})


def test_minimal_settings_have_the_defaults_of_the_reference() -> None:
    found = server()
    assert (found.baseurl, found.canonical_hostname, found.ssh_server) == (
        "https://review.example", "review.example", "review.example",
    )  # fmt: skip
    assert (found.port, found.keepalive_s, found.verify_ssl, found.stream_events) == (29418, 60, True, True)
    assert "s3cret" not in repr(found)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"server": ""}, "server"),
        ({"user": ""}, "user"),
        ({"password": ""}, "password"),
        ({"baseurl": "review.example"}, "baseurl"),
        ({"baseurl": "ftp://review.example"}, "baseurl"),
        ({"auth_type": "gcloud_service"}, "auth_type"),
        ({"auth_type": "form"}, "auth_type"),
        ({"port": "0"}, "port"),
        ({"port": "65536"}, "port"),
        ({"port": "12345678901234567890"}, "port"),
        ({"port": "²"}, "port"),
        ({"verify_ssl": "perhaps"}, "verify_ssl"),
        ({"keepalive": "-1"}, "keepalive"),
    ],
)
def test_an_error_names_the_invalid_setting_and_no_secret(settings: dict[str, str], word: str) -> None:
    with pytest.raises(UserError, match=rf"^{word}: ") as error:
        server(**settings)
    assert "s3cret" not in str(error.value)


def test_a_broker_of_events_leaves_polling() -> None:
    assert not server(kafka_bootstrap_servers="kafka.example:9092").stream_events
    assert not server(stream_events="false").stream_events


def test_projects_have_canonical_names_and_git_addresses_without_a_password() -> None:
    found = server(baseurl="https://review.example/r/", canonical_hostname="git.example")
    assert found.project("a b/c") == "git.example/a b/c" and found.path("git.example/a b/c") == "a b/c"
    assert found.git_url("a b/c") == "https://review.example/r/a/a%20b/c"
    over_ssh = server(git_over_ssh="true", user="ci@bot", ssh_server="ssh.example", port="22")
    assert over_ssh.git_url("a/b") == "ssh://ci%40bot@ssh.example:22/a/b"
    assert found.change_url("a b/c", 7) == "https://review.example/r/c/a%20b/c/+/7"


@pytest.mark.parametrize(
    ("url", "number"),
    [
        ("https://review.example/123", 123),
        ("http://review.example/123/", 123),
        ("https://review.example/#/c/123", 123),
        ("https://review.example/#/c/123/4", 123),
        ("https://review.example/c/123", 123),
        ("https://review.example/c/code/api/+/123", 123),
        ("https://review.example/c/code/api/+/123/5/file.c", 123),
        ("https://REVIEW.example:8443/c/code/api/+/123?tab=1#x", 123),
        ("https://review.example/c/12/34/+/123", 123),
        ("https://elsewhere.example/123", None),
        ("https://review.example/", None),
        ("https://review.example/q/status:open", None),
        ("https://review.example/c/code/api/+/", None),
        ("https://review.example/c/code/api/+/x1", None),
        ("https://review.example/12345678901234", None),
        ("https://review.example/²", None),
        ("123", None),
        ("https://[review.example/1", None),
    ],
)
def test_the_number_of_a_change_is_read_from_its_url(url: str, number: int | None) -> None:
    assert change_number(server(), url) == number


def test_urls_below_a_path() -> None:
    found = server(baseurl="https://review.example/r")
    assert change_number(found, "https://review.example/r/c/p/+/9") == 9
    assert change_number(found, "https://review.example/r/9") == 9
    assert change_number(found, "https://review.example/9") is None
    assert change_number(found, "https://review.example/rx/9") is None


async def test_a_password_is_in_no_url_and_on_no_command_line() -> None:
    by_http = git_connection(server(baseurl="https://review.example/r", verify_ssl="false"))
    assert by_http.url("review.example/code/api") == "https://review.example/r/a/code/api"
    assert by_http.access is not None
    options = dict(await by_http.access("review.example/code/api"))
    header = options.pop("http.https://review.example/r/.extraHeader")
    assert b64decode(header.removeprefix("Authorization: Basic ")) == b"headgate:s3cret"
    place = "http.https://review.example/r/"
    assert options == {f"{place}.sslVerify": "false", f"{place}.followRedirects": "false"}
    by_ssh = git_connection(server(git_over_ssh="true", sshkey="/keys/of headgate"))
    assert by_ssh.url("review.example/code/api") == "ssh://headgate@review.example:29418/code/api"
    assert by_ssh.access is not None
    command = (await by_ssh.access(""))["core.sshCommand"]
    assert "StrictHostKeyChecking=yes" in command and "'/keys/of headgate'" in command and "s3cret" not in command
