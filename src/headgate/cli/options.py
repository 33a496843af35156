"""Declare every option of the settings file: its kind, its default, and its purpose."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.adapters.forges.registry import FORGES
from headgate.adapters.nodes.clouds.registry import CLOUDS, settings_of
from headgate.adapters.option import ConnectionOption
from headgate.adapters.reporters.registry import REPORTERS
from headgate.cli.sections import AUTH, IMAGES, LAUNCHER, LOGS, PEOPLE, Option
from headgate.store.registry import shapes

OTHERS = ("queue", "inventory")
"""Drivers of connections to services of Headgate itself."""

OPTIONS: dict[str, dict[str, Option]] = {
    "scheduler": {
        "tenant_config": Option("path", "tenants.yaml", "The tenant file."),
        "tenant_config_script": Option("path", "", "A program that prints the tenant file; it takes the file's place."),
        "state_dir": Option("path", "state", "Where everything is stored that no other option places elsewhere."),
        "config_file_max_bytes": Option(
            "integer:1000,2000000",
            "2000000",
            "Size of one configuration file. This and the limits below must be the same for all processes.",
        ),
        "config_values_max": Option(
            "integer:1000,10000000", "500000", "Values in one file of configuration, its aliases written out."
        ),
        "config_reading_max_s": Option(
            "integer:1,3600", "20", "Processor time to read, link and freeze what one change proposes."
        ),
        "config_reading_max_bytes": Option(
            "integer:50000000,100000000000",
            "1000000000",
            "Memory for that, in addition to that of the tenant's layout.",
        ),
        "default_hold_expiration": Option("seconds", "86400", "How long a failed build is held (autohold) by default."),
        "max_hold_expiration": Option("seconds", "172800", "How long a failed build is held at most."),
        "item_jobs_max": Option("integer:1,100000", "1000", "Jobs of one change in one pipeline."),
        "item_dependencies_max": Option("integer:1,1000000", "20000", "Dependencies between these jobs."),
        "item_max_bytes": Option("integer:100000,1000000000", "40000000", "All these jobs together, as stored."),
        "prometheus_port": Option("integer:0,65535", "", "Port of health and figures, 0: a free one. Default: none."),
        "prometheus_addr": Option("text", "127.0.0.1", "Address of that port."),
    },
    "store": {
        "url": Option(
            "text",
            "",
            f"{', '.join(f'`{shape}`' for shape in shapes()[:-1])}, or `{shapes()[-1]}` to forget all. Default: in "
            "state_dir.",
        ),
        "session_timeout": Option(
            "seconds", "15", "Time without a sign of life after which others take over a component's work."
        ),
    },
    "zookeeper": {
        "hosts": Option(
            "text",
            "",
            "As in `zuul.conf`: without `[store] url`, state is kept at these servers, below `/headgate`.",
        ),
        "tls_cert": Option("path", "", "Certificate to show them."),
        "tls_key": Option("path", "", "Its key."),
        "tls_ca": Option("path", "", "Authority of their certificates; with it, connections are encrypted."),
        "session_timeout": Option("seconds", "", "As of `[store]`."),
    },
    "keystore": {
        "password": Option("text", "", "Encrypts the private keys of projects. Without it no job can have secrets."),
    },
    "connection *": {
        "driver": Option(
            f"choice:{','.join(('git', *FORGES, *CLOUDS, *OTHERS, *REPORTERS))}",
            "git",
            "The kind of the connection. git has projects. Messages of a queue, and objects of the inventory, start "
            "pipelines. To all of them pipelines report; so they do as mail, to a webhook, to Elasticsearch, or to "
            "chats and MQTT, which need `pip install 'headgate[chat]'` and `'headgate[mqtt]'`.",
        ),
        "baseurl": Option("text", "", "git: where its repositories are: a directory, or an ssh or https URL."),
        "canonical_hostname": Option("text", "", "Host part of canonical project names. Default: the host of baseurl."),
        "approvals": Option(
            "choice:bound",
            "",
            "`bound`: the server's rules bind the names below `refs/approvals` and `refs/vetoes` to who pushes "
            "(`headgate hook install --people`). Requirements that ask for people by name are refused without it.",
        ),
        "people": PEOPLE,
        "poll_delay": Option("seconds", "30", "How often remote repositories are polled; local ones are watched."),
        "sshkey": Option("path", "", "git: the private key for ssh. Default: the keys of the user that runs Headgate."),
        "known_hosts": Option(
            "path", "", "git: the host keys that ssh trusts; it learns none. Default: `~/.ssh/known_hosts`."
        ),
        "webhook_token": Option(
            "text",
            "",
            "git: the secret with which its server signs pokes (`headgate hook poke`). Default: pokes are rejected.",
        ),
        "url": Option(
            "text",
            "",
            "queue: where messages are posted and read, as `http://HOST:5000/v1/APP/`; with a section `[messages]` the "
            "default is what is served here.",
        ),
        "app_key": Option(
            "text",
            "",
            "queue: a key of that application. Default, of queues that are served here: the operator's token.",
        ),
        "partitions": Option("integer:1,200", "8", "queue: of queues that are made; a project is always in one."),
        "partition": Option("text", "", "inventory: the name of the partition whose objects are watched."),
        "project": Option("text", "", "inventory: the project whose objects are watched, and in whose name."),
    },
    "merger": {
        "git_dir": Option("path", "", "Bare copies of repositories. Default: in state_dir."),
        "jobs": Option("integer:1,1000", "8", "How much git work runs at a time."),
        "git_user_name": Option(
            "text", "Headgate", "Author and committer of merge commits; must be the same everywhere."
        ),
        "git_user_email": Option("text", "headgate@localhost", "Their address."),
        "prometheus_port": Option("integer:0,65535", "", "Port of health and figures, 0: a free one. Default: none."),
        "prometheus_addr": Option("text", "127.0.0.1", "Address of that port."),
    },
    "launcher": LAUNCHER,
    "executor": {
        "job_dir": Option("path", "", "Work directories of builds. Default: in state_dir."),
        "log_dir": Option("path", "", "Logs of builds. Default: in state_dir."),
        "log_access": Option(
            "choice:owner,group,all",
            "owner",
            "Who on this machine may read log_dir, such as a web server; state_dir is for its owner only.",
        ),
        "builds": Option(
            "integer:1,10000", "", "How many builds run at a time. Default: twice the number of processors."
        ),
        "hostname": Option(
            "text", "", "Name under which other processes reach this one. Default: that of the machine."
        ),
        "zone": Option("text", "", "Zone of this executor: it runs builds that need the labels of its machines."),
        "allow_unzoned": Option("flag", "false", "Whether an executor of a zone also runs builds without a zone."),
        "load_multiplier": Option(
            "number",
            "",
            "Load average per processor beyond which no build is begun. Default: 2.5; no limit with `headgate run`, "
            "as nobody else could take it.",
        ),
        "min_avail_mem": Option("number", "5.0", "Per cent of memory that must be free for another build."),
        "min_avail_hdd": Option("number", "5.0", "Per cent of the disk of builds that must be free for another."),
        "sigterm_method": Option(
            "choice:stop,graceful", "stop", "On SIGTERM, builds go back to run elsewhere (stop), or are finished."
        ),
        "prometheus_port": Option("integer:0,65535", "", "Port of health, figures and logs. Default: a free one."),
        "prometheus_addr": Option("text", "127.0.0.1", "Address of that port."),
        "sandbox": Option(
            "choice:auto,bwrap,container,none",
            "auto",
            "Whether jobs run in bubblewrap; auto: where it works; container: and untrusted programs in the image that "
            "their job names, which is a host of its playbooks. That needs root, and podman.",
        ),
        **IMAGES,
        "build_users": Option(
            "text",
            "",
            "Numbers of the users and groups that builds run as, FIRST-LAST, if the executor is root; nobody else may "
            "have them. Default: 1900000000-1900065535. Other users have those of /etc/subuid.",
        ),
        "sandbox_network": Option(
            "choice:none,outside,host",
            "outside",
            "What jobs in bubblewrap reach beside their own nodes. outside: the world, but not this machine, the "
            "machines Headgate runs on, other builds, the link and clouds' metadata; host: what this machine does.",
        ),
        "sandbox_network_trusted": Option(
            "choice:none,outside,host", "", "The same for playbooks of config-projects. Default: as sandbox_network."
        ),
        "sandbox_network_deny": Option(
            "text", "", "Addresses and networks that jobs never reach, separated by spaces."
        ),
        "sandbox_network_allow": Option(
            "text",
            "",
            "HOST:PORT, separated by spaces, that jobs reach despite other rules, such as a mirror of packages.",
        ),
        "trusted_ro_paths": Option("text", "", "Paths, with `:` between, that jobs of config-projects may read, too."),
        "trusted_rw_paths": Option("text", "", "Paths that jobs of config-projects may write, too."),
        "untrusted_ro_paths": Option("text", "", "Paths that jobs of other projects may read, too."),
        "untrusted_rw_paths": Option("text", "", "Paths that jobs of other projects may write, too."),
        "trusted_user_namespaces": Option(
            "flag",
            "no",
            "Whether jobs of config-projects may make user namespaces, as programs that run containers do.",
        ),
        "untrusted_user_namespaces": Option("flag", "no", "The same for jobs of other projects."),
        "variables": Option(
            "path", "", "YAML file of variables for all jobs; they take precedence over those of jobs."
        ),
        "nodes": Option(
            "path", "", "YAML file of machines: name, labels, variables of Ansible. Default: this machine."
        ),
        "ansible_root": Option(
            "path",
            "",
            "Where the versions of Ansible are that `headgate ansible install` makes. Default: `ansible` in state_dir.",
        ),
        "ansible_packages": Option(
            "path",
            "",
            "File of Python packages that are added to each of them, as pip reads it: what modules of collections "
            "need, such as boto3, openstacksdk or pywinrm. Packages of Ansible itself keep their versions. After a "
            "change, run `headgate ansible install`.",
        ),
        "manage_ansible": Option(
            "flag", "no", "Whether a version that a job asks for is installed, from PyPI, when it is not there."
        ),
        "warm_ansible": Option("flag", "yes", "Whether playbooks are copies of a process that has imported Ansible."),
        "memory_max_mb": Option("integer:16,1000000000", "8000", "Memory of a build, with its files in /tmp."),
        "processes_max": Option("integer:8,4000000", "2000", "Processes and threads of a build at a time."),
        "disk_max_mb": Option("integer:1,1000000000", "20000", "What a build may have on disk."),
        "files_max": Option("integer:1,1000000000", "2000000", "How many files a build may have on disk."),
        "tmp_size_max_mb": Option(
            "integer:1,1000000000", "2000", "Size of each directory in memory: /tmp, /var/tmp, /dev/shm."
        ),
        "open_files_max": Option("integer:32,1000000", "16384", "Open files of each process of a job."),
        "file_size_max_mb": Option("integer:1,1000000000", "", "Size of each file on disk. Default: disk_max_mb."),
        "output_max_mb": Option("integer:1,1000000000", "1000", "A job that prints more fails."),
        "disk_reserve_mb": Option(
            "integer:0,1000000000",
            "2000",
            "Before less is free on the disk of builds, the one that uses the most is ended; never more than 5 % of "
            "the disk.",
        ),
        "log_size_max_mb": Option("number", "100", "What a job writes beyond this is discarded, and the log says so."),
        "files_size_max_mb": Option(
            "number", "1000", "Files that a job leaves in its log directory beyond this size are not stored."
        ),
        "default_timeout": Option("seconds", "10800", "Timeout of jobs that set none."),
        "held_builds_max": Option(
            "integer:0,1000", "5", "Builds whose work directories and machines are held here at a time (autohold)."
        ),
    },
    "logs": LOGS,
    "web": {
        "listen_address": Option("text", "127.0.0.1", "Address to listen on."),
        "port": Option("integer:0,65535", "9000", "Port to listen on; 0 takes a free one."),
        "root": Option("text", "", "URL under which people reach the pages; used in reports."),
        "dashboards": Option(
            "text",
            "",
            "Origins of dashboards on other servers, such as `https://zuul.example`, separated by blanks. Their pages "
            "may write with a bearer token. Default: none; pages of other servers may only read.",
        ),
        "tenant": Option("text", "", "A tenant that is also served without its name: `/api/builds`, `/builds`."),
        "token": Option("text", "", "The operator's token, which permits everything. A file is safer."),
        "login_max": Option("seconds", "28800", "How long a login to the pages lasts."),
        "metrics": Option(
            "choice:token,everybody",
            "token",
            "Who may read `/metrics` of every server: holders of the operator's token, or everybody.",
        ),
        "token_file": Option(
            "path",
            "",
            "The file with the token, which nobody else may read. Default: `token` in state_dir, created if missing.",
        ),
        "prometheus_port": Option(
            "integer:0,65535", "", "Port for health and metrics, in addition to that of the pages."
        ),
        "prometheus_addr": Option("text", "127.0.0.1", "Address of that port."),
    },
    "fingergw": {
        "port": Option("integer:0,65535", "79", "Where logs are served to `finger BUILD@HOST`; 0: a free port."),
        "listen_address": Option("text", "::", "Address of that port; `::` is every address, also of IPv4."),
        "public_port": Option("integer:1,65535", "", "Port under which others reach it. Default: the same."),
        "tls_cert": Option("path", "", "Certificate that it shows, PEM. With TLS, all three are needed."),
        "tls_key": Option("path", "", "Its key."),
        "tls_ca": Option("path", "", "Authority of the certificates that clients must show."),
        "prometheus_port": Option("integer:0,65535", "", "Port of health and figures, 0: a free one. Default: none."),
        "prometheus_addr": Option("text", "127.0.0.1", "Address of that port."),
    },
    "tls": {
        "certificate": Option("path", "", "Certificate that the servers show, PEM. Default: they speak without TLS."),
        "key": Option("path", "", "Its key."),
        "client_ca": Option("path", "", "Callers need a certificate of this authority. Default: they need none."),
        "ca": Option(
            "path",
            "",
            "Authority of the servers' certificates, which clients believe besides those of the system; not needed for "
            "executors that show the same certificate.",
        ),
    },
    "inventory": {
        "prefix": Option(
            "text", "/", "What is before `runm/metadata` in the store. Default with `compatible`: `runm-metadata/`."
        ),
        "compatible": Option(
            "flag", "false", "Keep data and definitions as runm-metadata does, for programs written for it."
        ),
        "listen_address": Option("text", "127.0.0.1", "Address of the gRPC service."),
        "port": Option("integer:0,65535", "10002", "Its port; 0 takes a free one."),
        "http_port": Option("integer:0,65535", "", "Port for JSON over HTTP. Default: not served."),
        "identity": Option(
            "choice:verify,trust",
            "verify",
            "verify: the operator's token, tokens of an `[auth NAME]`, client certificates. trust, on loopback only: "
            "callers are who they say they are, for clients without tokens.",
        ),
        "open_partitions": Option(
            "text", "", "Partitions for credentials that name none, separated by blanks; `*`: all."
        ),
        "cert_path": Option("path", "", "Certificate of the service, gRPC and HTTP, PEM. Default: of `[tls]`."),
        "key_path": Option("path", "", "Its key."),
        "client_ca_path": Option("path", "", "Callers need a certificate of this authority. Default: they need none."),
        "service_name": Option("text", "runmachine-metadata", "Name under which clients find the service in etcd."),
    },
    "auth *": AUTH,
    "published_events": {
        "url": Option("text", "", "Where events are posted, as `http://HOST:5000/v1/APP/`. Default: nowhere."),
        "app_key": Option("text", "", "A key of that application."),
        "partitions": Option(
            "integer:1,200",
            "8",
            "Partitions of the queues, one queue per tenant; a project is always in one partition.",
        ),
        "inventory": Option(
            "flag",
            "false",
            "Whether changes of the inventory's objects are posted, too; its partitions have a queue each.",
        ),
        "waiting_max": Option(
            "integer:1,1000000",
            "10000",
            "While a message server is away, so many turns of pipelines wait to be told to it; the same for each "
            "connection that is a queue. What is not told then, is logged, and counted in `headgate_messages_untold`.",
        ),
    },
    "messages": {
        "url": Option("text", "", "`sqlite:///FILE` or `postgresql://…`. Default: an SQLite file in state_dir."),
        "listen_address": Option("text", "127.0.0.1", "Address `headgate queue serve` listens on."),
        "port": Option("integer:0,65535", "5000", "Its port; 0 takes a free one."),
        "application_bytes_max": Option(
            "integer:0,9999999999999",
            "10000000000",
            "Size of the messages of an application; 0: no limit. Further posts get 429.",
        ),
        "application_messages_max": Option("integer:0,9999999999", "0", "Messages of an application; 0: any number."),
        "application_rate_max": Option(
            "integer:0,1000000", "0", "Messages that an application posts in a second, to each server; 0: any number."
        ),
    },
    "application_keys": {
        "*": Option(
            "text",
            "",
            "Application = its keys, with blanks or lines between them: who may use its queues. Behind a key "
            "`until=2026-12-31T00:00:00Z` says how long it is good, so that it can be replaced. They are read "
            "anew when the file changes, and on SIGHUP.",
        ),
    },
    "log": {
        "format": Option("choice:text,json", "text", "Format of the log on standard error; json: one object per line."),
        "level": Option("choice:debug,info,warning,error", "info", "Less important messages are not logged."),
    },
    "tracing": {
        "enabled": Option("flag", "false", "Whether traces are sent. Needs `pip install 'headgate[tracing]'`."),
        "endpoint": Option("text", "http://127.0.0.1:4318/v1/traces", "Where OTLP over HTTP is accepted."),
    },
    "database": {
        "dburi": Option("text", "", "SQLAlchemy URL of the history. Default: an SQLite file in state_dir."),
        "keep_days": Option(
            "integer:0,100000", "0", "How long ended buildsets and actions of people are kept; 0: for ever."
        ),
    },
}

FORMER = {"notices": "published_events"}
"""Former name of a section, read until the next release -> its name."""


def add(known: dict[str, Option], driver: str, settings: Mapping[str, ConnectionOption]) -> None:
    """Add the options of a driver; the help of a shared option says what it means for each driver."""
    for name, (kind, default, doc) in settings.items():
        was, text = known.get(name), f"{driver}: {doc}"
        # Several drivers have options of one name, such as `server`: the first one's kind counts, the texts are joined.
        known[name] = Option(kind, default, text) if was is None else was._replace(doc=f"{was.doc} {text}")


for _name, _reporter in REPORTERS.items():
    add(OPTIONS["connection *"], _name, _reporter.settings)
for _driver, _row in FORGES.items():
    add(OPTIONS["connection *"], _driver, _row.settings)
for _driver in CLOUDS:
    add(OPTIONS["connection *"], _driver, settings_of(_driver))
