"""Explain the options of `zuul.conf` that are not Headgate's own: their effect here, and what to do instead."""

from __future__ import annotations

from typing import NamedTuple

from headgate.adapters.forges.registry import FORGES, REFERENCE, STREAMS, without_effect
from headgate.adapters.nodes.clouds.registry import CLOUDS

NEEDLESS, INSTEAD, MISSING = "not needed", "said otherwise", "missing"


class OptionNote(NamedTuple):
    """Explain an option that has no effect here."""

    kind: str
    """NEEDLESS: nothing has to be done; INSTEAD: use another option; MISSING: there is no counterpart."""
    text: str


def _needless(text: str) -> OptionNote:
    return OptionNote(NEEDLESS, text)


def _instead(text: str) -> OptionNote:
    return OptionNote(INSTEAD, text)


def _missing(text: str) -> OptionNote:
    return OptionNote(MISSING, text)


_PROCESS = {
    "command_socket": _needless("commands reach processes through the store (`headgate components`) and signals"),
    "pidfile": _needless("processes stay in the foreground; whoever started them knows their numbers"),
    "log_config": _instead("`[log] format` and `level`; the log goes to standard error"),
    "user": _needless("a process runs as whoever starts it"),
}
_TLS_OF_TRACES = _missing("traces go by HTTP, to a collector that may speak TLS with others")
_NO_CLOUD = _missing("machines are objects of the inventory: docs/how-to/use-the-inventory.md")
_REMOVED = _needless("the reference has no Gearman any more, either")

NOTES: dict[str, dict[str, OptionNote]] = {
    "scheduler": {
        **_PROCESS,
        "relative_priority": _needless("projects take turns among those of equal precedence, always"),
        "default_ansible_version": _instead("`default-ansible-version` of each tenant"),
    },
    "merger": {
        **_PROCESS,
        "git_timeout": _needless("git work that makes no progress is ended"),
        "git_http_low_speed_limit": _needless("git work that makes no progress is ended"),
        "git_http_low_speed_time": _needless("git work that makes no progress is ended"),
    },
    "executor": {
        **_PROCESS,
        "git_dir": _instead("`[merger] git_dir`: a machine has its repositories once"),
        "git_timeout": _needless("git work that makes no progress is ended"),
        "finger_port": _instead("`headgate fingergw`, which reads logs where the web does; executors speak no finger"),
        "log_stream_port": _needless("what commands print is read through the connection that Ansible has"),
        "log_stream_file": _needless("what commands print is read through the connection that Ansible has"),
        "private_key_file": _instead(
            "the property `ansible_ssh_private_key_file` of a machine or its provider, or the "
            "key of the account that executors and launchers run as"
        ),
        "default_username": _instead("the property `ansible_user` of a machine"),
        "winrm_cert_key_file": _missing("machines are reached over ssh; Windows has a server of it, too"),
        "winrm_cert_pem_file": _missing("machines are reached over ssh; Windows has a server of it, too"),
        "winrm_operation_timeout_sec": _missing("machines are reached over ssh"),
        "winrm_read_timeout_sec": _missing("machines are reached over ssh"),
        "ansible_setup_timeout": _needless("the time of a playbook counts from its start"),
        "disk_limit_per_job": _instead("`disk_max_mb`; a build that takes more is ended at once"),
        "max_starting_builds": _needless("no more builds begin at once than there are processors"),
        "min_avail_inodes": _instead("`files_max`, of each build"),
        "merge_jobs": _instead("`[merger] jobs`; an executor prepares repositories by itself, and merges for nobody"),
        "output_max_bytes": _instead("`output_max_mb`"),
        "paused_on_start": _instead("`headgate components pause`, once it runs"),
    },
    "web": {
        **_PROCESS,
        "static_path": _needless("the pages come with the program"),
        "static_cache_expiry": _needless("browsers ask whether a page has changed"),
        "status_url": _instead("`root`: addresses in reports begin with it"),
        "stats_url": _instead("a page of your own, of the figures at /metrics"),
        "stats_type": _instead("a page of your own, of the figures at /metrics"),
    },
    "launcher": {
        **_PROCESS,
        "connection_filter": _NO_CLOUD,
        "temp_dir": _NO_CLOUD,
        "upload_limit": _NO_CLOUD,
    },
    "database": {
        "pool_recycle": _needless("a lost connection is made again"),
        "table_prefix": _needless("tables have names of their own, and lie beside the reference's"),
    },
    "tracing": {
        "protocol": _missing("traces go by HTTP: give `endpoint` as http://HOST:4318/v1/traces"),
        "service_name": _needless("the service is called headgate"),
        "insecure": _TLS_OF_TRACES,
        "tls_cert": _TLS_OF_TRACES,
        "tls_key": _TLS_OF_TRACES,
        "tls_ca": _TLS_OF_TRACES,
        "timeout": _needless("whoever takes no traces holds nobody up"),
        "compression": _needless("traces are small"),
    },
    "statsd": {"*": _instead("figures are at /metrics of each process, for Prometheus")},
    "fingergw": {
        **_PROCESS,
        "hostname": _instead("`[executor] hostname`, which is that of every process of a machine"),
        "zone": _needless("executors are reached at the addresses that they announce, whatever their zone"),
        "tls_client_only": _needless("gateways do not ask each other"),
        "tls_verify_hostnames": _needless("gateways do not ask each other"),
    },
    "oidc": {"*": _missing("jobs get no tokens of an OpenID provider; give them secrets")},
    "client": {"*": _needless("commands find the server in `[web]`, or with --url")},
    "webclient": {"*": _needless("commands find the server in `[web]`, or with --url")},
    "gearman": {"*": _REMOVED},
    "gearman_server": {"*": _REMOVED},
    "ansible_callback *": {"*": _missing("callbacks of Ansible are not taken; a post-run playbook can tell others")},
    "auth *": {
        "authority": _instead("`issuer_id`: people log in with who issues their tokens"),
        "private_key": _needless("tokens are signed elsewhere; `public_key` is enough to verify them"),
    },
}
"""Section -> option -> its effect here; `*`: any option of the section."""

LACKING: dict[str, OptionNote] = {
    "sql": _needless("every build is in the history, which `[database]` names"),
    **dict.fromkeys(("aws", "azure", "gce", "ibmvpc", "kubernetes", "openstack", "openshift"), _NO_CLOUD),
}
"""Driver of the reference that Headgate may lack -> the note about a connection with it."""


def note(kind: str, option: str, driver: str = "") -> OptionNote | None:
    """Return the note about an option in this kind of section, or None if there is none."""
    of = NOTES.get(kind, {})
    if kind == "connection *":
        if driver in LACKING and driver not in CLOUDS:
            return LACKING[driver]
        if (why := without_effect(driver).get(option)) is not None:
            return _needless(why)
        if driver == "gerrit" and option in STREAMS:
            return _missing("events come by ssh, or by asking; with this option they are asked for")
        known = driver in FORGES or option in REFERENCE.get(driver, {})
        return _missing(f"the driver of {driver} has nothing like it") if known else None
    return of.get(option) or of.get("*")
