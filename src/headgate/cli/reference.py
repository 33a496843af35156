"""Explain the options of `zuul.conf` that Headgate does not have: why, and what to use instead."""

from __future__ import annotations

from typing import NamedTuple

from headgate.adapters.forges.registry import FORGES, REFERENCE, STREAMS, without_effect
from headgate.adapters.nodes.clouds.registry import CLOUDS

NEEDLESS, INSTEAD, MISSING = "not needed", "replaced", "missing"


class OptionNote(NamedTuple):
    """Explain an option that has no effect in Headgate."""

    kind: str
    """NEEDLESS: the option can simply go; INSTEAD: use something else; MISSING: there is no counterpart."""
    text: str


def _needless(text: str) -> OptionNote:
    return OptionNote(NEEDLESS, text)


def _instead(text: str) -> OptionNote:
    return OptionNote(INSTEAD, text)


def _missing(text: str) -> OptionNote:
    return OptionNote(MISSING, text)


_PROCESS = {
    "command_socket": _needless("commands control processes through the store (`headgate components`) and signals"),
    "pidfile": _needless("processes stay in the foreground; the service manager knows their process ids"),
    "log_config": _instead("`[log] format` and `level`; the log goes to standard error"),
    "user": _needless("a process runs as the user that starts it"),
}
_TLS_OF_TRACES = _missing("traces are sent over HTTP; run a local collector that forwards them over TLS")
_NO_CLOUD = _missing("Headgate makes no machines there; list them instead: docs/how-to/list-machines.md")
_STATE = _instead("`[scheduler] state_dir`, which applies to every process of a machine")
_STALLED_GIT = _needless("git operations that make no progress are stopped")
_LOG_STREAM = _needless("the executor reads the output of commands through Ansible's connection")
_NO_WINRM = _missing("machines are reached over ssh only; Windows includes an ssh server")
_REMOVED = _needless("neither Headgate nor current Zuul uses Gearman")

NOTES: dict[str, dict[str, OptionNote]] = {
    "scheduler": {
        **_PROCESS,
        "relative_priority": _needless("projects of equal precedence always take turns"),
        "default_ansible_version": _instead("`default-ansible-version` of each tenant"),
    },
    "merger": {
        **_PROCESS,
        "git_timeout": _STALLED_GIT,
        "git_http_low_speed_limit": _STALLED_GIT,
        "git_http_low_speed_time": _STALLED_GIT,
    },
    "executor": {
        **_PROCESS,
        "state_dir": _STATE,
        "git_dir": _instead("`[merger] git_dir`: all processes on a machine share one copy of each repository"),
        "git_timeout": _STALLED_GIT,
        "finger_port": _instead("`headgate fingergw`; executors do not serve finger themselves"),
        "log_stream_port": _LOG_STREAM,
        "log_stream_file": _LOG_STREAM,
        "private_key_file": _instead(
            "the property `ansible_ssh_private_key_file` of a machine or its provider, or the "
            "ssh key of the user that executors and launchers run as"
        ),
        "default_username": _instead("the property `ansible_user` of a machine"),
        "winrm_cert_key_file": _NO_WINRM,
        "winrm_cert_pem_file": _NO_WINRM,
        "winrm_operation_timeout_sec": _NO_WINRM,
        "winrm_read_timeout_sec": _NO_WINRM,
        "ansible_setup_timeout": _needless("the setup counts towards the timeout of the playbook"),
        "disk_limit_per_job": _instead("`disk_max_mb`; a build that exceeds it is stopped immediately"),
        "max_starting_builds": _needless("at most as many builds start concurrently as there are processors"),
        "min_avail_inodes": _instead("`files_max`, a limit for each build"),
        "merge_jobs": _instead("`[merger] jobs`; executors merge only for their own builds"),
        "output_max_bytes": _instead("`output_max_mb`"),
        "paused_on_start": _instead("`headgate components pause`, once it runs"),
    },
    "web": {
        **_PROCESS,
        "static_path": _needless("the pages are part of the program"),
        "static_cache_expiry": _needless("browsers revalidate each page"),
        "status_url": _instead("`root`: URLs in reports begin with it"),
        "auth_log_file_requests": _needless("the pages request the logs of private tenants with the user's token"),
        "stats_url": _instead("a dashboard of your own for the metrics at /metrics"),
        "stats_type": _instead("a dashboard of your own for the metrics at /metrics"),
    },
    "launcher": {
        **_PROCESS,
        "state_dir": _STATE,
        "connection_filter": _missing("one launcher acts for all connections, and the others wait to take over"),
        "temp_dir": _instead("`image_dir`"),
        "upload_limit": _needless("the number of concurrent uploads to a connection is limited"),
    },
    "database": {
        "pool_recycle": _needless("Headgate reconnects when a connection is lost"),
        "table_prefix": _needless("Headgate's tables have other names than Zuul's, so both fit into one database"),
    },
    "tracing": {
        "protocol": _missing("traces are sent over HTTP: set `endpoint` to http://HOST:4318/v1/traces"),
        "service_name": _needless("the service name is always headgate"),
        "insecure": _TLS_OF_TRACES,
        "tls_cert": _TLS_OF_TRACES,
        "tls_key": _TLS_OF_TRACES,
        "tls_ca": _TLS_OF_TRACES,
        "timeout": _needless("a collector that does not answer delays nothing"),
        "compression": _needless("traces are small"),
    },
    "statsd": {"*": _instead("each process serves metrics for Prometheus at /metrics")},
    "fingergw": {
        **_PROCESS,
        "hostname": _instead("`[executor] hostname`, which applies to every process of a machine"),
        "zone": _needless("the gateway reaches executors of every zone at the addresses that they announce"),
        "tls_client_only": _needless("gateways do not call each other"),
        "tls_verify_hostnames": _needless("gateways do not call each other"),
    },
    "oidc": {"*": _missing("Headgate issues no OpenID tokens to jobs; use secrets")},
    "client": {"*": _needless("commands take the server's URL from `[web]` or --url")},
    "webclient": {"*": _needless("commands take the server's URL from `[web]` or --url")},
    "gearman": {"*": _REMOVED},
    "gearman_server": {"*": _REMOVED},
    "ansible_callback *": {
        "*": _missing("Ansible callbacks are not supported; notify others from a post-run playbook")
    },
    "auth *": {
        "authority": _instead("`issuer_id`: people log in at the issuer of their tokens"),
        "private_key": _needless("tokens are signed elsewhere; `public_key` is enough to verify them"),
    },
}
"""Section -> option -> the note about it; `*`: any option of the section."""

LACKING: dict[str, OptionNote] = {
    "sql": _needless("the history contains every build; `[database]` configures it"),
    **dict.fromkeys(("aws", "azure", "gce", "ibmvpc", "kubernetes", "openstack", "openshift"), _NO_CLOUD),
}
"""Driver of Zuul that Headgate may lack -> the note about a connection with it."""


def note(kind: str, option: str, driver: str = "") -> OptionNote | None:
    """Return the note about an option in this kind of section, or None if there is none."""
    of = NOTES.get(kind, {})
    if kind == "connection *":
        if driver in LACKING and driver not in CLOUDS:
            return LACKING[driver]
        if (why := without_effect(driver).get(option)) is not None:
            return _needless(why)
        if driver == "gerrit" and option in STREAMS:
            return _missing("Headgate receives events over ssh, or polls; with this option it polls")
        known = driver in FORGES or option in REFERENCE.get(driver, {})
        return _missing(f"the driver {driver} has no such option") if known else None
    return of.get(option) or of.get("*")
