"""Test an unchanged `zuul.conf`: every section and option is used, or reported with the alternative."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.adapters.forges.registry import FORGES, REFERENCE
from headgate.base.errors import UserError
from headgate.cli.check.migration import WIDTH, is_of_the_reference, page
from headgate.cli.options import OPTIONS
from headgate.cli.reference import LACKING, NEEDLESS, NOTES
from headgate.cli.resources import connected
from headgate.cli.settings import Settings, read

FULL = """
[zookeeper]
hosts = zk1:2281, zk2:2281,zk3:2281
tls_cert = /etc/zuul/ssl/client.pem
tls_key = /etc/zuul/ssl/client.key
tls_ca = /etc/zuul/ssl/ca.pem
session_timeout = 40
[keystore]
password = hunter2hunter2
[statsd]
server = localhost
port = 8125
prefix = ci
[tracing]
enabled = no
protocol = grpc
endpoint = http://localhost:4317
service_name = zuul
tls_cert = a
tls_key = b
tls_ca = c
insecure = true
timeout = 10
compression = gzip
[scheduler]
command_socket = /var/lib/zuul/scheduler.socket
tenant_config = /etc/zuul/main.yaml
log_config = /etc/zuul/scheduler-logging.conf
pidfile = /run/zuul/scheduler.pid
relative_priority = true
default_hold_expiration = 86400
max_hold_expiration = 172800
prometheus_port = 9091
prometheus_addr = 0.0.0.0
[merger]
command_socket = /var/lib/zuul/merger.socket
git_dir = /var/lib/zuul/git
git_http_low_speed_limit = 1000
git_http_low_speed_time = 30
git_timeout = 300
git_user_email = zuul@example.com
git_user_name = Zuul
log_config = /etc/zuul/merger-logging.conf
pidfile = /run/zuul/merger.pid
prometheus_port = 9092
prometheus_addr = 0.0.0.0
[executor]
command_socket = /var/lib/zuul/executor.socket
finger_port = 7900
git_dir = /var/lib/zuul/executor-git
job_dir = /var/lib/zuul/builds
state_dir = /var/lib/zuul
log_config = /etc/zuul/executor-logging.conf
private_key_file = ~/.ssh/id_rsa
default_username = zuul
winrm_cert_key_file = ~/.winrm/key
winrm_cert_pem_file = ~/.winrm/pem
winrm_operation_timeout_sec = 120
winrm_read_timeout_sec = 180
ansible_root = /var/lib/zuul/ansible
ansible_setup_timeout = 60
manage_ansible = false
disk_limit_per_job = 250
trusted_ro_paths = /opt/zuul-scripts:/etc/x
trusted_rw_paths = /opt/logs
untrusted_ro_paths = /opt/ro
untrusted_rw_paths = /opt/rw
load_multiplier = 2.5
max_starting_builds = 4
min_avail_hdd = 5.0
min_avail_inodes = 5.0
min_avail_mem = 5.0
hostname = executor1.example.com
log_stream_file = /tmp/console-{log_uuid}.log
log_stream_port = 19885
zone = some-site
allow_unzoned = true
merge_jobs = true
output_max_bytes = 1073741824
paused_on_start = false
pidfile = /run/zuul/executor.pid
sigterm_method = graceful
variables = /etc/zuul/variables.yaml
prometheus_port = 9093
prometheus_addr = 0.0.0.0
[web]
command_socket = /var/lib/zuul/web.socket
listen_address = 0.0.0.0
port = 9000
log_config = /etc/zuul/web-logging.conf
pidfile = /run/zuul/web.pid
root = https://zuul.example.com/
static_cache_expiry = 3600
static_path = /usr/share/zuul
stats_url = https://graphite.example.com
stats_type = graphite
auth_log_file_requests = true
status_url = https://zuul.example.com/status
prometheus_port = 9094
prometheus_addr = 0.0.0.0
[fingergw]
command_socket = /var/lib/zuul/fingergw.socket
listen_address = 0.0.0.0
port = 79
user = zuul
hostname = finger.example.com
zone = z
tls_cert = a
tls_key = b
tls_ca = c
tls_verify_hostnames = true
tls_client_only = false
[launcher]
command_socket = /var/lib/zuul/launcher.socket
log_config = /etc/zuul/launcher-logging.conf
pidfile = /run/zuul/launcher.pid
connection_filter = aws
prometheus_port = 9095
prometheus_addr = 0.0.0.0
temp_dir = /tmp
state_dir = /var/lib/zuul
upload_limit = 2
[database]
dburi = postgresql://zuul@localhost/zuul
pool_recycle = 1
table_prefix = ci_
[oidc]
supported_signing_algorithms = RS256
signing_key_rotation_interval = 604800
[auth ops]
driver = HS256
allow_authz_override = true
realm = zuul.example.com
client_id = zuul.example.com
issuer_id = zuul_operator
secret = exampleSecretexampleSecretexampleSecret
uid_claim = sub
max_validity_time = 3600
skew = 0
default = true
[auth keycloak]
driver = OpenIDConnect
realm = my_realm
client_id = my_client
issuer_id = https://keycloak/auth
scope = openid
load_user_info = true
[webclient]
url = https://zuul.example.com
verify_ssl = true
[ansible_callback "example"]
foo = bar
[connection git.example]
driver = git
baseurl = https://git.example
[connection mail]
driver = smtp
server = localhost
port = 25
default_from = zuul@example.com
default_to = you@example.com
use_starttls = false
[connection mqtt]
driver = mqtt
server = localhost
user = zuul
[connection elastic]
driver = elasticsearch
uri = http://localhost:9200
[connection cloud]
driver = azure
access_key_id = x
secret_access_key = s3cr3ts3cr3t
"""
SECRETS = ("exampleSecret", "hunter2", "s3cr3t", "zuul@localhost")


def settings(tmp_path: Path, text: str = FULL) -> Settings:
    (tmp_path / "zuul.conf").write_text(text)
    return read(tmp_path / "zuul.conf", {})


def test_every_option_of_the_file_is_used_or_reported(tmp_path: Path) -> None:
    found = settings(tmp_path)
    output = page(found)
    section = ""
    for line in filter(None, FULL.splitlines()):
        if line.startswith("["):
            section = line
            continue
        option = line.partition("=")[0].strip()
        of_section = any(one.section == section[1:-1] and not one.option for one in found.idle)
        assert option in output or option == "driver" or of_section, line
    assert not [line for line in output.splitlines()[1:] if len(line) > WIDTH]
    assert len(output.splitlines()) < 120, "it is one page"
    assert not [secret for secret in SECRETS if secret in output]


def test_accepted_options_have_their_effect(tmp_path: Path) -> None:
    found = settings(tmp_path)
    where = "zk1:2281,zk2:2281,zk3:2281/headgate"
    assert found.store_url.startswith(f"zookeeper://{where}?tls_ca=%2Fetc%2Fzuul%2Fssl%2Fca.pem&tls_cert=")
    assert found.session_timeout_s == 40
    assert found.tenant_config == Path("/etc/zuul/main.yaml")
    assert found.get("executor", "zone") == "some-site" and found.get("web", "root") == "https://zuul.example.com/"
    assert found.place("merger", "git_dir", "") == Path("/var/lib/zuul/git")
    assert set(found.authenticators) == {"ops", "keycloak"}
    assert set(found.connections) == {"git.example", "mail", "mqtt", "elastic", "cloud"}
    assert "access_key_id" not in found.connections["cloud"], "what nobody listens to is not kept"
    assert "command_socket" not in found.values["scheduler"] and "statsd" not in found.values


def test_the_store_that_is_named_comes_first(tmp_path: Path) -> None:
    found = settings(tmp_path, "[zookeeper]\nhosts=a\nsession_timeout=40\n[store]\nurl=memory:\n")
    assert (found.store_url, found.session_timeout_s) == ("memory:", 15)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[scheduler]\ncomand_socket = x\n", "unknown option 'comand_socket'"),
        ("[schedular]\n", "did you mean 'scheduler'"),
        ("[connection a]\ndriver = gerit\n", "must be one of"),
        ("[connection a]\ndriver = git\nbaseurl = x\nkafka_topic = y\n", "unknown option 'kafka_topic'"),
        ("[zookeeper]\nhost = x\n", "did you mean 'hosts'"),
        ("[auth a]\ndriver = OpenID\n", "must be one of"),
    ],
)
def test_unknown_options_are_still_errors(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        settings(tmp_path, text)


def test_the_page_says_what_differs(tmp_path: Path) -> None:
    output = page(settings(tmp_path, "[zookeeper]\nhosts=a\n[keystore]\npassword=x\n[connection g]\nbaseurl=/x\n"))
    for text in ("Headgate stores its files in", "below /headgate", "127.0.0.1 only", "keys import", "every 30 s"):
        assert text in output
    old = page(settings(tmp_path, "[database]\ndburi = mysql+pymysql://zuul@localhost/zuul\n"))
    assert "0 options work unchanged; not supported: 1, " in old and "Works unchanged" not in old
    assert "mysql" not in output and "PostgreSQL and SQLite" in page(
        settings(tmp_path, "[database]\ndburi = mysql+pymysql://zuul@localhost/zuul\n")
    )
    assert not is_of_the_reference(Settings(tmp_path / "headgate.conf", {"web": {"port": "1"}}))


@pytest.mark.parametrize(
    ("text", "section", "extra"),
    [
        ("[tracing]\nenabled = yes\n", "tracing", "tracing"),
        ("[database]\ndburi = postgresql://zuul@db/zuul\n", "database", "postgresql"),
        ("[connection cloud]\ndriver = aws\n", "connection cloud", "inventory"),
        ("[connection bus]\ndriver = mqtt\nserver = bus\n", "connection bus", "mqtt"),
    ],
)
def test_the_page_names_extras_that_are_not_installed(
    tmp_path: Path, text: str, section: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = f"[{section}]: this needs a library: pip install 'headgate[{extra}]'"
    assert line not in page(settings(tmp_path, text)), "everything is installed here"
    monkeypatch.setattr("headgate.cli.check.migration.find_spec", lambda name: None)
    assert line in page(settings(tmp_path, text))
    assert "needs a library" not in page(settings(tmp_path, "[tracing]\nenabled = no\n"))


@pytest.mark.parametrize("driver", sorted(REFERENCE))
def test_every_option_of_a_driver_is_used_or_reported(tmp_path: Path, driver: str) -> None:
    """Check that every option that a driver lacks is reported; a connection without a driver is an error where it is
    used."""
    section = {"driver": driver, **{name: kind.default or "x" for name, kind in REFERENCE[driver].items()}}
    section |= {name: "1" for name, kind in REFERENCE[driver].items() if kind.kind.startswith(("int", "sec"))}
    section |= {name: "yes" for name, kind in REFERENCE[driver].items() if kind.kind == "flag"}
    text = "".join(f"{name} = {value}\n" for name, value in section.items())
    found = settings(tmp_path, f"[connection a]\n{text}")
    taken, idle = set(found.connections["a"]), {one.option for one in found.idle}
    assert taken | idle == set(section)
    assert driver in FORGES or not taken & idle, "what nobody listens to is not kept"


def test_effective_options_cause_no_message() -> None:
    for section, notes in NOTES.items():
        assert not notes.keys() & OPTIONS.get(section, {}).keys(), section
    assert not [text for of in NOTES.values() for text in of.values() if not text.text]
    assert LACKING.keys().isdisjoint(FORGES)


@pytest.mark.parametrize(
    ("driver", "option"), [("pagure", "land = push"), ("gerrit", "land = push"), ("gitea", "app_id = 1")]
)
def test_options_that_only_other_forges_have_are_reported(tmp_path: Path, driver: str, option: str) -> None:
    text = f"driver = {driver}\nserver = src.example.com\napi_token = x\n{option}\n"
    read = settings(tmp_path, f"[connection src]\n{text}")
    assert {one.option for one in read.idle} - {"api_token"} == {option.partition(" ")[0]}
    assert f"the driver {driver} has no such option" in page(read)


def test_settings_of_a_pagure_work_unchanged(tmp_path: Path) -> None:
    """Read one in Zuul's form: without a secret of webhooks, and with trusted addresses."""
    text = "driver = pagure\nserver = src.example.com\napi_token = x\nsource_whitelist = 10.0.0.1, 10.0.0.2\n"
    read = settings(tmp_path, f"[connection src]\n{text}")
    assert [(one.option, one.note.kind) for one in read.idle] == [("source_whitelist", NEEDLESS)]
    assert "deliveries are signed, and an address proves nothing" in page(read)
    found = connected(read)["src"]
    assert found.forge.named("https://src.example.com/rpms/rocket/pull-request/3") == "src.example.com/rpms/rocket#3"
    assert found.git.url("src.example.com/rpms/rocket") == "https://src.example.com/rpms/rocket.git"
    with pytest.raises(UserError, match=r"\[connection src\].*api_token"):
        connected(settings(tmp_path, "[connection src]\ndriver = pagure\n"))
