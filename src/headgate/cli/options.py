"""Declare every option of the settings file: its kind, its default, and its purpose."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.adapters.forges.registry import FORGES
from headgate.adapters.nodes.clouds.registry import CLOUDS, settings_of
from headgate.adapters.option import ConnectionOption
from headgate.adapters.reporters.registry import REPORTERS
from headgate.cli.sections import IMAGES, PEOPLE, PROMETHEUS, SECTIONS, Option
from headgate.store.registry import shapes

OTHERS = ("queue", "inventory")
"""Drivers of connections to Headgate's own services."""


OPTIONS: dict[str, dict[str, Option]] = {
    "scheduler": {
        "tenant_config": Option("path", "tenants.yaml", "The tenant file."),
        "tenant_config_script": Option("path", "", "A program that prints the tenant file, instead of tenant_config."),
        "state_dir": Option("path", "state", "Directory for all data that no other option places elsewhere."),
        "config_file_max_bytes": Option(
            "integer:1000,2000000",
            "2000000",
            "Maximum size of one configuration file. This limit and those below must be the same for all processes.",
        ),
        "config_values_max": Option(
            "integer:1000,10000000",
            "500000",
            "Maximum number of values in one configuration file, with YAML aliases expanded.",
        ),
        "config_reading_max_s": Option(
            "integer:1,3600",
            "20",
            "Maximum processor time to read, link and freeze the configuration that one change proposes.",
        ),
        "config_reading_max_bytes": Option(
            "integer:50000000,100000000000",
            "1000000000",
            "Maximum memory for this, in addition to the memory of the tenant's layout.",
        ),
        "default_hold_expiration": Option("seconds", "86400", "How long a failed build is held (autohold) by default."),
        "max_hold_expiration": Option("seconds", "172800", "Maximum time for which a failed build may be held."),
        "item_jobs_max": Option("integer:1,100000", "1000", "Maximum number of jobs of one change in one pipeline."),
        "item_dependencies_max": Option(
            "integer:1,1000000",
            "20000",
            "Maximum number of dependencies between these jobs, also on initializers, and of names in their `provides` "
            "and `requires`.",
        ),
        "item_semaphores_max": Option(
            "integer:0,100000", "20", "Maximum number of semaphores of these jobs that no landed configuration defines."
        ),
        "item_max_bytes": Option("integer:100000,1000000000", "40000000", "Maximum stored size of all these jobs."),
        "prometheus_port": Option("integer:0,65535", "", PROMETHEUS),
        "prometheus_addr": Option("text", "127.0.0.1", "Address of that port."),
    },
    "store": {
        "url": Option(
            "text",
            "",
            f"{', '.join(f'`{shape}`' for shape in shapes()[:-1])}, or `{shapes()[-1]}`, which loses all state on "
            "exit. Default: in state_dir.",
        ),
        "session_timeout": Option(
            "seconds", "15", "After this time without contact to a component, others take over its work."
        ),
    },
    "zookeeper": {
        "hosts": Option(
            "text",
            "",
            "As in `zuul.conf`: if `[store] url` is not set, state is stored on these servers, below `/headgate`.",
        ),
        "tls_cert": Option("path", "", "Client certificate for these servers."),
        "tls_key": Option("path", "", "Private key of `tls_cert`."),
        "tls_ca": Option("path", "", "CA of the servers' certificates; if set, connections are encrypted."),
        "session_timeout": Option("seconds", "", "Same as in `[store]`."),
    },
    "keystore": {
        "password": Option("text", "", "Encrypts the private keys of projects. Without it, jobs cannot use secrets."),
    },
    "connection *": {
        "driver": Option(
            f"choice:{','.join(('git', *FORGES, *CLOUDS, *OTHERS, *REPORTERS))}",
            "git",
            "Kind of the connection. git provides projects. queue and inventory start pipelines for messages and for "
            "changed objects. Pipelines can report to all of these, and also by mail, to a webhook, to Elasticsearch, "
            "to chats (needs `pip install 'headgate[chat]'`) and to MQTT (needs `pip install 'headgate[mqtt]'`).",
        ),
        "baseurl": Option("text", "", "git: location of the repositories: a directory, or an ssh or https URL."),
        "canonical_hostname": Option("text", "", "Host part of canonical project names. Default: the host of baseurl."),
        "approvals": Option(
            "choice:bound",
            "",
            "`bound`: the server lets people push below `refs/approvals` and `refs/vetoes` only under their own names "
            "(`headgate hook install --people`). Requirements for approvals by named people need this.",
        ),
        "people": PEOPLE,
        "poll_delay": Option("seconds", "30", "How often remote repositories are polled; local ones are watched."),
        "sshkey": Option("path", "", "git: private key for ssh. Default: the keys of the user that runs Headgate."),
        "known_hosts": Option(
            "path", "", "git: file with the only host keys that ssh trusts. Default: `~/.ssh/known_hosts`."
        ),
        "webhook_token": Option(
            "text",
            "",
            "git: secret with which the server signs pokes (`headgate hook poke`). Default: pokes are rejected.",
        ),
        "url": Option(
            "text",
            "",
            "queue: URL to post and read messages, such as `http://HOST:5000/v1/APP/`. Default: this installation's "
            "own server, if there is a section `[messages]`.",
        ),
        "app_key": Option(
            "text",
            "",
            "queue: a key of that application. Default for this installation's own server: the operator's token.",
        ),
        "partitions": Option(
            "integer:1,200",
            "8",
            "queue: number of partitions of each queue that Headgate creates; a project always uses the same one.",
        ),
        "partition": Option("text", "", "inventory: name of the partition whose objects are watched."),
        "project": Option(
            "text", "", "inventory: project whose objects are watched; Headgate's calls are made on its behalf."
        ),
    },
    "merger": {
        "git_dir": Option("path", "", "Bare copies of repositories. Default: in state_dir."),
        "jobs": Option("integer:1,1000", "8", "Maximum number of concurrent git operations."),
        "git_user_name": Option(
            "text", "Headgate", "Author and committer of merge commits; must be the same for all processes."
        ),
        "git_user_email": Option("text", "headgate@localhost", "Email address of that author."),
        "prometheus_port": Option("integer:0,65535", "", PROMETHEUS),
        "prometheus_addr": Option("text", "127.0.0.1", "Address of that port."),
    },
    "launcher": SECTIONS["launcher"],
    "executor": {
        "job_dir": Option("path", "", "Work directories of builds. Default: in state_dir."),
        "log_dir": Option("path", "", "Logs of builds. Default: in state_dir."),
        "log_access": Option(
            "choice:owner,group,all",
            "owner",
            "Which users of this machine, such as that of a web server, may read log_dir. Only its owner may read "
            "state_dir.",
        ),
        "builds": Option(
            "integer:1,10000", "", "Maximum number of concurrent builds. Default: twice the number of processors."
        ),
        "hostname": Option(
            "text", "", "Host name under which other processes reach this one. Default: the machine's host name."
        ),
        "zone": Option("text", "", "Zone of this executor: it runs builds that need machines of this zone."),
        "allow_unzoned": Option("flag", "false", "Whether an executor of a zone also runs builds without a zone."),
        "load_multiplier": Option(
            "number",
            "",
            "Load average per processor above which no build starts. Default: 2.5; no limit with `headgate run`, where "
            "no other executor could run the build.",
        ),
        "min_avail_mem": Option("number", "5.0", "Percentage of memory that must be free for a build to start."),
        "min_avail_hdd": Option(
            "number", "5.0", "Percentage of the build disk that must be free for a build to start."
        ),
        "sigterm_method": Option(
            "choice:stop,graceful",
            "stop",
            "On SIGTERM, abort builds, so that they run again elsewhere (stop), or finish them first (graceful).",
        ),
        "prometheus_port": Option(
            "integer:0,65535", "", "Port that serves health checks, metrics and logs. Default: a free port."
        ),
        "prometheus_addr": Option("text", "127.0.0.1", "Address of that port."),
        "sandbox": Option(
            "choice:auto,bwrap,container,none",
            "auto",
            "Isolation of jobs. bwrap: bubblewrap; auto: bubblewrap if it works on this machine; container: "
            "bubblewrap, and untrusted programs run in a container of the image that their job names, which is also a "
            "host for its playbooks. container needs root and podman.",
        ),
        **IMAGES,
        "build_users": Option(
            "text",
            "",
            "Range FIRST-LAST of user and group ids for builds, if the executor runs as root; nothing else may use "
            "these ids. Default: 1900000000-1900065535. Executors of other users take theirs from /etc/subuid.",
        ),
        "sandbox_network": Option(
            "choice:none,outside,host",
            "outside",
            "What jobs in bubblewrap can reach besides their own nodes. none: nothing; outside: all other networks, "
            "but not this machine, machines that run Headgate, other builds, link-local addresses and cloud metadata "
            "services; host: everything that this machine can reach.",
        ),
        "sandbox_network_trusted": Option(
            "choice:none,outside,host",
            "",
            "Same as sandbox_network, for playbooks of config-projects. Default: sandbox_network.",
        ),
        "sandbox_network_deny": Option(
            "text", "", "Addresses and networks that jobs must never reach, separated by spaces."
        ),
        "sandbox_network_allow": Option(
            "text",
            "",
            "HOST:PORT targets that jobs may reach despite the other rules, such as a package mirror, separated by "
            "spaces.",
        ),
        "trusted_ro_paths": Option(
            "text", "", "Further paths that jobs of config-projects may read, separated by `:`."
        ),
        "trusted_rw_paths": Option(
            "text", "", "Further paths that jobs of config-projects may read and write, separated by `:`."
        ),
        "untrusted_ro_paths": Option("text", "", "Further paths that jobs of other projects may read."),
        "untrusted_rw_paths": Option("text", "", "Further paths that jobs of other projects may read and write."),
        "trusted_user_namespaces": Option(
            "flag",
            "no",
            "Whether jobs of config-projects may create user namespaces, which container tools need.",
        ),
        "untrusted_user_namespaces": Option("flag", "no", "Same for jobs of other projects."),
        "variables": Option("path", "", "YAML file with variables for all jobs; they override the variables of a job."),
        "nodes": Option("path", "", "YAML file with machines: name, labels, Ansible variables. Default: this machine."),
        "ansible_root": Option(
            "path",
            "",
            "Directory for the versions that `headgate ansible install` installs. Default: `ansible` in state_dir.",
        ),
        "ansible_packages": Option(
            "path",
            "",
            "Requirements file for pip with Python packages to add to each version, such as boto3, openstacksdk or "
            "pywinrm, which modules of collections need. It cannot change the versions of Ansible's own packages. "
            "After a change, run `headgate ansible install`.",
        ),
        "manage_ansible": Option(
            "flag", "no", "Whether to install a version that a job requests from PyPI when it is missing."
        ),
        "warm_ansible": Option(
            "flag", "yes", "Whether playbooks start as forks of a process that has already imported Ansible."
        ),
        "memory_max_mb": Option(
            "integer:16,1000000000", "8000", "Maximum memory of a build, including its files in /tmp."
        ),
        "processes_max": Option(
            "integer:8,4000000", "2000", "Maximum number of concurrent processes and threads of a build."
        ),
        "disk_max_mb": Option("integer:1,1000000000", "20000", "Maximum disk space of a build."),
        "files_max": Option("integer:1,1000000000", "2000000", "Maximum number of files of a build on disk."),
        "tmp_size_max_mb": Option(
            "integer:1,1000000000", "2000", "Maximum size of each in-memory directory: /tmp, /var/tmp, /dev/shm."
        ),
        "open_files_max": Option(
            "integer:32,1000000", "16384", "Maximum number of open files of each process of a job."
        ),
        "file_size_max_mb": Option(
            "integer:1,1000000000", "", "Maximum size of each file on disk. Default: disk_max_mb."
        ),
        "output_max_mb": Option(
            "integer:1,1000000000", "1000", "Maximum output of a job; a job that prints more fails."
        ),
        "disk_reserve_mb": Option(
            "integer:0,1000000000",
            "2000",
            "Space to keep free on the disk of builds, but never more than 5 % of the disk. If less is free, the build "
            "that uses the most is stopped.",
        ),
        "log_size_max_mb": Option(
            "number", "100", "Maximum size of a job's log; the rest is discarded, and the log notes that."
        ),
        "files_size_max_mb": Option(
            "number",
            "1000",
            "Maximum total size of the files that a job leaves in its log directory; others are not stored.",
        ),
        "default_timeout": Option(
            "seconds", "10800", "Timeout of jobs that set none. A pause lasts at most eight times as long."
        ),
        "held_builds_max": Option(
            "integer:0,1000", "5", "Maximum number of builds held on this machine at a time (autohold)."
        ),
    },
    "logs": SECTIONS["logs"],
    "web": {
        "listen_address": Option("text", "127.0.0.1", "Address to listen on."),
        "port": Option("integer:0,65535", "9000", "Port to listen on; 0 picks a free one."),
        "root": Option("text", "", "URL under which people reach the pages; used in reports."),
        "dashboards": Option(
            "text",
            "",
            "Origins of dashboards on other servers, such as `https://zuul.example`, separated by spaces. Their pages "
            "may call the API to make changes, with a bearer token. Default: none; pages of other servers may only "
            "read.",
        ),
        "tenant": Option("text", "", "A tenant to serve also without its name in the path: `/api/builds`, `/builds`."),
        "token": Option("text", "", "The operator's token, which permits everything. token_file is safer."),
        "login_max": Option("seconds", "28800", "How long a login to the pages lasts."),
        "metrics": Option(
            "choice:token,everybody",
            "token",
            "Who may read `/metrics` of every server: holders of the operator's token, or everybody.",
        ),
        "token_file": Option(
            "path",
            "",
            "File with the operator's token; other users must not be able to read it. Default: `token` in state_dir, "
            "created if missing.",
        ),
        "prometheus_port": Option(
            "integer:0,65535", "", "Port for health and metrics, in addition to the port of the pages."
        ),
        "prometheus_addr": Option("text", "127.0.0.1", "Address of that port."),
    },
    "fingergw": SECTIONS["fingergw"],
    "tls": {
        "certificate": Option("path", "", "Certificate of Headgate's servers, PEM. Default: no TLS."),
        "key": Option("path", "", "Private key of `certificate`."),
        "client_ca": Option("path", "", "CA of the certificates that clients must present. Default: they need none."),
        "ca": Option(
            "path",
            "",
            "CA of the servers' certificates; clients trust it in addition to the system's CAs. Not needed for "
            "executors that use the same certificate.",
        ),
    },
    "inventory": SECTIONS["inventory"],
    "auth *": SECTIONS["auth *"],
    "published_events": {
        "url": Option("text", "", "URL to post events to, such as `http://HOST:5000/v1/APP/`. Default: none."),
        "app_key": Option("text", "", "A key of that application."),
        "partitions": Option(
            "integer:1,200",
            "8",
            "Number of partitions of each queue, one queue per tenant; a project always uses the same partition.",
        ),
        "inventory": Option(
            "flag",
            "false",
            "Whether to post changes to the inventory's objects, too; each of its partitions has a queue.",
        ),
        "waiting_max": Option(
            "integer:1,1000000",
            "10000",
            "While a message server does not answer, messages of at most this many pipeline turns wait for it; the "
            "same limit applies to each queue connection. Messages beyond it are dropped, logged, and counted in "
            "`headgate_messages_dropped_total`.",
        ),
    },
    "messages": SECTIONS["messages"],
    "application_keys": {
        "*": Option(
            "text",
            "",
            "APPLICATION = KEYS: the keys that permit access to the queues of an application, separated by spaces or "
            "line breaks. `until=2026-12-31T00:00:00Z` after a key sets its expiry, so that it can be rotated. "
            "Headgate reloads the keys when the file changes, and on SIGHUP.",
        ),
    },
    "log": {
        "format": Option("choice:text,json", "text", "Format of the log on standard error; json: one object per line."),
        "level": Option("choice:debug,info,warning,error", "info", "Least severe level that is logged."),
    },
    "tracing": {
        "enabled": Option("flag", "false", "Whether to send traces. Needs `pip install 'headgate[tracing]'`."),
        "endpoint": Option("text", "http://127.0.0.1:4318/v1/traces", "URL of an OTLP collector, over HTTP."),
    },
    "database": {
        "dburi": Option("text", "", "SQLAlchemy URL of the history database. Default: an SQLite file in state_dir."),
        "keep_days": Option(
            "integer:0,100000", "0", "How long to keep finished buildsets and manual actions; 0: forever."
        ),
    },
}

FORMER = {"notices": "published_events"}
"""Former name of a section, read until the next release -> its name."""


def add(known: dict[str, Option], driver: str, settings: Mapping[str, ConnectionOption]) -> None:
    """Add the options of a driver; the help of a shared option describes its meaning for each driver."""
    for name, (kind, default, doc) in settings.items():
        was, text = known.get(name), f"{driver}: {doc}"
        # Drivers share option names, such as `server`: the first driver's kind counts, and the help texts are joined.
        known[name] = Option(kind, default, text) if was is None else was._replace(doc=f"{was.doc} {text}")


for _name, _reporter in REPORTERS.items():
    add(OPTIONS["connection *"], _name, _reporter.settings)
for _driver, _row in FORGES.items():
    add(OPTIONS["connection *"], _driver, _row.settings)
for _driver in CLOUDS:
    add(OPTIONS["connection *"], _driver, settings_of(_driver))
