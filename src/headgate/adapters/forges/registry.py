"""List the drivers of forges with their options: a new driver needs a row here, and a package."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from headgate.adapters.option import ConnectionOption
from headgate.ports.limits import Alone, ForgeLimits

if TYPE_CHECKING:
    from headgate.adapters.git.connection import GitConnection
    from headgate.adapters.git.engine import GitEngine
    from headgate.ports.forge import Forge

NO_EFFECT = "accepted without effect: "
"""Prefix of the `doc` of settings that Zuul has and that have no effect here."""


class DriverOptions(NamedTuple):
    """Hold the settings that a driver receives for one connection."""

    name: str
    options: Mapping[str, str]
    """The options that are set in the connection's section."""
    directory: Path
    """Directory of the settings file; paths are relative to it."""
    engine: Callable[[], GitEngine]
    """Returns the engine, for drivers that read repositories; do not call it while connecting."""
    now_ms: Callable[[], int]
    limits: ForgeLimits = Alone()
    """Shares limits of the forge's API among the system's processes."""


async def _nothing() -> None:
    pass


class Connected(NamedTuple):
    """Hold the objects that a driver creates for a connection. Creating them makes no call."""

    git: GitConnection
    """Gives mergers and executors access to its repositories."""
    forge: Forge
    close: Callable[[], Awaitable[None]] = _nothing


class ForgeDriver(NamedTuple):
    """Describe one driver."""

    module: str
    """Module with `connect(given: DriverOptions) -> Connected`, which raises UserError; imported once a connection
    names the driver."""
    settings: Mapping[str, ConnectionOption]
    """Options besides those that every connection has."""
    needed: tuple[str, str] = ("", "")
    """A required option, and its meaning; empty if no option is required."""


class _Package(Protocol):
    def connect(self, given: DriverOptions) -> Connected: ...


_LAND = ConnectionOption(
    "choice:merge,push",
    "merge",
    "how changes land: with `merge`, the forge merges, and Headgate compares the resulting tree with the tested one; "
    "with `push`, Headgate pushes the tested commit itself.",
)
_GERRIT = {
    "server": ConnectionOption("text", "", "the host of Gerrit."),
    "user": ConnectionOption("text", "", "Headgate's account there, for REST, ssh and git."),
    "password": ConnectionOption("text", "", "its HTTP password."),
    "auth_type": ConnectionOption("text", "basic", "how the password is sent: `basic` or `digest`."),
    "verify_ssl": ConnectionOption("flag", "true", "whether certificates are checked."),
    "ssh_server": ConnectionOption("text", "", "the host of ssh, if it differs from `server`."),
    "port": ConnectionOption("integer:1,65535", "", "the port of ssh. Default: 29418."),
    "sshkey": ConnectionOption(
        "path", "", "the private key of the account. Default: the keys of the user that runs Headgate."
    ),
    "known_hosts": ConnectionOption(
        "path", "", "the file of trusted host keys; new keys are never added. Default: `~/.ssh/known_hosts`."
    ),
    "keepalive": ConnectionOption(
        "seconds", "60", "the time between keepalive messages on ssh; three may go unanswered."
    ),
    "git_over_ssh": ConnectionOption("flag", "false", "whether git uses ssh, too."),
    "stream_events": ConnectionOption("flag", "true", "whether to listen to the stream of events, or only to poll."),
    "replication_delay": ConnectionOption("seconds", "0", "how long to delay events of the stream."),
}
_GITHUB = {
    "server": ConnectionOption("text", "github.com", "its host; for an Enterprise Server, its name."),
    "app_id": ConnectionOption("text", "", "the id of Headgate's GitHub App; requires app_key."),
    "app_key": ConnectionOption("path", "", "the app's private key, in PEM format."),
    "api_token": ConnectionOption(
        "text", "", "a personal token, for use without an app: without check runs, and with a person's rate limits."
    ),
    "webhook_token": ConnectionOption(
        "text",
        "",
        "the secret of the webhook. Without it, deliveries are rejected, and Headgate polls every five minutes.",
    ),
    "sshkey": ConnectionOption("path", "", "a key for git, which then uses ssh."),
    "verify_ssl": ConnectionOption("flag", "true", "whether the certificate of an Enterprise Server is checked."),
    "rate_limit_logging": ConnectionOption("flag", "true", f"{NO_EFFECT}Headgate logs a limit when it is reached."),
    "max_threads_per_installation": ConnectionOption("integer", "1", f"{NO_EFFECT}there are no threads."),
    "repo_cache": ConnectionOption("text", "", f"{NO_EFFECT}repositories are cloned from the server."),
    "repo_retry_timeout": ConnectionOption("integer", "600", f"{NO_EFFECT}missing commits are fetched again."),
    "land": _LAND,
}
_GITLAB = {
    "server": ConnectionOption("text", "gitlab.com", "its host."),
    "baseurl": ConnectionOption("text", "", "its address, if it has a path. Default: https://SERVER."),
    "cloneurl": ConnectionOption(
        "text", "", "where git clones from, such as ssh://git@gitlab.example.com. Default: baseurl."
    ),
    "api_token": ConnectionOption("text", "", "a token of Headgate's account there, with the scope api."),
    "api_token_name": ConnectionOption(
        "text", "headgate", "the name with which git logs in, besides the token; GitLab accepts any name."
    ),
    "webhook_token": ConnectionOption(
        "text",
        "",
        "the secret token of the webhooks. Without it, and without webhook_signing_token, deliveries are "
        "rejected, and Headgate polls every five minutes.",
    ),
    "webhook_signing_token": ConnectionOption(
        "text", "", "the signing token of the webhooks; unsigned deliveries are rejected."
    ),
    "sshkey": ConnectionOption("path", "", "a key for git, if cloneurl uses ssh."),
    "verify_ssl": ConnectionOption("flag", "true", "whether the certificate is checked."),
    "keepalive": ConnectionOption("seconds", "60", f"{NO_EFFECT}connections stay open while they are used."),
    "disable_connection_pool": ConnectionOption("flag", "false", f"{NO_EFFECT}connections are shared."),
    "land": _LAND,
}
_GITEA = {
    "server": ConnectionOption("text", "", "the host; without `baseurl`, Headgate calls it over https."),
    "baseurl": ConnectionOption("text", "", "the root of its pages, with a path if it is below another site."),
    "cloneurl": ConnectionOption(
        "text", "", "where repositories are cloned from. Default: baseurl, or ssh with `sshkey`."
    ),
    "api_token": ConnectionOption("text", "", "a token of Headgate's account there."),
    "user": ConnectionOption("text", "", "the name of that account. Default: the server reports it."),
    "webhook_token": ConnectionOption(
        "text",
        "",
        "the secret of the webhook. Without it, deliveries are rejected, and Headgate polls every five minutes.",
    ),
    "sshkey": ConnectionOption("path", "", "a key for git, which then uses ssh."),
    "verify_ssl": ConnectionOption("flag", "true", "whether the certificate is checked."),
    "land": _LAND,
}
_PAGURE = {
    "server": ConnectionOption("text", "pagure.io", "its host."),
    "baseurl": ConnectionOption("text", "", "its address, if it has a path. Default: https://SERVER."),
    "cloneurl": ConnectionOption(
        "text", "", "where repositories are cloned from. Default: baseurl, or ssh with `sshkey`."
    ),
    "api_token": ConnectionOption("text", "", "a token of Headgate's account there, valid for all projects."),
    "app_name": ConnectionOption("text", "Zuul", "the prefix of its flags."),
    "webhook_token": ConnectionOption(
        "text",
        "",
        "the token of the webhooks: one, or a comma-separated list of `PROJECT=TOKEN`. Default: Headgate requests the "
        "token of each project from Pagure.",
    ),
    "sshkey": ConnectionOption(
        "path", "", "a key for git, which then uses ssh; without it, git reads public repositories only."
    ),
    "verify_ssl": ConnectionOption("flag", "true", "whether the certificate is checked."),
    "source_whitelist": ConnectionOption(
        "text", "", f"{NO_EFFECT}deliveries are signed, and an address proves nothing."
    ),
}
FORGES: dict[str, ForgeDriver] = {
    "gerrit": ForgeDriver("headgate.adapters.forges.gerrit.driver", _GERRIT, ("server", "the host of Gerrit")),
    "github": ForgeDriver("headgate.adapters.forges.github.forge", _GITHUB),
    "gitlab": ForgeDriver(
        "headgate.adapters.forges.gitlab.forge", _GITLAB, ("api_token", "of an account with scope api")
    ),
    "gitea": ForgeDriver("headgate.adapters.forges.gitea.forge", _GITEA, ("api_token", "a token of its account there")),
    "pagure": ForgeDriver(
        "headgate.adapters.forges.pagure.forge", _PAGURE, ("api_token", "a token of its account there")
    ),
}
"""Name of the driver, as settings and `config.drivers` use it -> its row."""

_HOST = ConnectionOption("text", "", "Host part of canonical project names. Default: the server.")
_KEY = ConnectionOption(
    "path", "", "The private key with which git, and Gerrit's ssh, log in. Default: the account's own."
)
_VERIFY = ConnectionOption("flag", "true", "Whether the server's certificate is checked.")
_HOOK = ConnectionOption("text", "", "The secret that deliveries of its webhooks are signed with.")
_CLONE = ConnectionOption("text", "", "Where repositories are cloned from. Default: baseurl.")
_KEEPALIVE = ConnectionOption("seconds", "60", "Interval between keepalive messages of a connection; 0: none.")
_TOKEN = ConnectionOption("text", "", "The token of the account that reads and reports.")

_KAFKA = {
    "kafka_bootstrap_servers": ConnectionOption("text", "", "Kafka servers that the plugin events-kafka writes to."),
    "kafka_topic": ConnectionOption("text", "gerrit", "Its topic."),
    "kafka_client_id": ConnectionOption("text", "", "The name of this client."),
    "kafka_group_id": ConnectionOption("text", "zuul", "Its consumer group."),
    "kafka_tls_key": ConnectionOption("path", "", "Key of its certificate."),
    "kafka_tls_cert": ConnectionOption("path", "", "Its certificate."),
    "kafka_tls_ca": ConnectionOption("path", "", "Certificate authority of the servers."),
}
_KINESIS = {
    "aws_kinesis_region": ConnectionOption(
        "text", "", "Region of the stream that the plugin events-aws-kinesis writes to."
    ),
    "aws_kinesis_stream": ConnectionOption("text", "gerrit", "Its name."),
    "aws_kinesis_access_key": ConnectionOption("text", "", "The key that reads it."),
    "aws_kinesis_secret_key": ConnectionOption("text", "", "Its secret."),
}
_PUBSUB = {
    "gcloud_pubsub_project": ConnectionOption("text", "", "Project of the topic of the plugin events-gcloud-pubsub."),
    "gcloud_pubsub_topic": ConnectionOption("text", "gerrit", "Its name."),
    "gcloud_pubsub_subscription_id": ConnectionOption("text", "zuul", "The subscription."),
    "gcloud_pubsub_private_key": ConnectionOption("path", "", "The key of the account that reads it."),
}
STREAMS = frozenset({*_KAFKA, *_KINESIS, *_PUBSUB})
"""Options of Gerrit for other sources of events."""

REFERENCE: dict[str, dict[str, ConnectionOption]] = {
    "gerrit": {
        "server": ConnectionOption("text", "", "The host of Gerrit. Needed."),
        "user": ConnectionOption("text", "", "The account, of ssh and HTTP. Needed."),
        "baseurl": ConnectionOption("text", "", "Root of its pages and API. Default: https://SERVER."),
        "canonical_hostname": _HOST,
        "ssh_server": ConnectionOption("text", "", "The host of ssh. Default: the server."),
        "port": ConnectionOption("integer:1,65535", "29418", "The port of its ssh."),
        "sshkey": _KEY,
        "keepalive": _KEEPALIVE,
        "password": ConnectionOption(
            "text", "", "Password of the account, for HTTP. Without it, ssh is used for everything."
        ),
        "auth_type": ConnectionOption("choice:basic,digest,form,gcloud_service", "basic", "How to log in over HTTP."),
        "verify_ssl": _VERIFY,
        "git_over_ssh": ConnectionOption("flag", "false", "Whether git uses ssh although there is a password."),
        "gitweb_url_template": ConnectionOption(
            "text", "", "Address of a commit, built from baseurl, project.name and sha."
        ),
        "max_dependencies": ConnectionOption(
            "integer", "", "Changes with more dependencies are ignored. Default: no limit."
        ),
        "replication_delay": ConnectionOption("seconds", "0", "How long every event is delayed."),
        "stream_events": ConnectionOption(
            "flag", "true", "Whether events are streamed over ssh; otherwise Gerrit is polled."
        ),
        **_KAFKA,
        **_KINESIS,
        **_PUBSUB,
    },
    "github": {
        "server": ConnectionOption("text", "github.com", "The host; another one is GitHub Enterprise."),
        "canonical_hostname": _HOST,
        "app_id": ConnectionOption("text", "", "The number of the GitHub App."),
        "app_key": ConnectionOption("path", "", "Its private key, PEM."),
        "api_token": ConnectionOption("text", "", "A token, for projects without the App."),
        "webhook_token": _HOOK,
        "sshkey": _KEY,
        "verify_ssl": _VERIFY,
        "rate_limit_logging": ConnectionOption("flag", "true", "Whether the remaining budget of calls is logged."),
        "repo_cache": ConnectionOption("text", "", "Host of a repository cache of GitHub Enterprise."),
        "repo_retry_timeout": ConnectionOption("seconds", "600", "How long to wait for a commit that the cache lacks."),
        "max_threads_per_installation": ConnectionOption(
            "integer", "1", "Events of an installation that are processed in parallel."
        ),
    },
    "gitlab": {
        "server": ConnectionOption("text", "gitlab.com", "The host."),
        "baseurl": ConnectionOption("text", "", "Root of its pages and API. Default: https://SERVER."),
        "canonical_hostname": _HOST,
        "cloneurl": _CLONE,
        "api_token": _TOKEN,
        "api_token_name": ConnectionOption("text", "", "The name with which git logs in, besides the token."),
        "webhook_token": _HOOK,
        "sshkey": _KEY,
        "keepalive": _KEEPALIVE,
        "disable_connection_pool": ConnectionOption(
            "flag", "false", "Whether each request has a connection of its own."
        ),
    },
    "pagure": {
        "server": ConnectionOption("text", "pagure.io", "The host."),
        "baseurl": ConnectionOption("text", "", "Root of its pages and API. Default: https://SERVER."),
        "canonical_hostname": _HOST,
        "cloneurl": _CLONE,
        "sshkey": _KEY,
        "api_token": _TOKEN,
        "app_name": ConnectionOption("text", "Zuul", "The prefix of its flags."),
        "source_whitelist": ConnectionOption(
            "text", "", "Addresses whose deliveries are accepted without a signature."
        ),
    },
    "git": {
        "baseurl": ConnectionOption("text", "", "Where its repositories are. Needed."),
        "poll_delay": ConnectionOption("seconds", "7200", "Interval at which they are polled."),
        "canonical_hostname": _HOST,
        "sshkey": _KEY,
    },
    "mqtt": {
        "server": ConnectionOption("text", "localhost", "The host of the broker."),
        "port": ConnectionOption("integer:1,65535", "1883", "Its port."),
        "keepalive": _KEEPALIVE,
        "user": ConnectionOption("text", "", "The user that logs in."),
        "password": ConnectionOption("text", "", "The password of that user."),
        "ca_certs": ConnectionOption("path", "", "Certificate authorities that sign the broker's certificate."),
        "certfile": ConnectionOption("path", "", "The certificate of this client."),
        "keyfile": ConnectionOption("path", "", "Its key."),
        "ciphers": ConnectionOption("text", "", "Permitted ciphers."),
    },
    "elasticsearch": {
        "uri": ConnectionOption("text", "", "Its servers, separated by commas. Needed."),
        "use_ssl": ConnectionOption("flag", "true", "Whether to use TLS."),
        "verify_certs": ConnectionOption("flag", "true", "Whether its certificate is checked."),
        "ca_certs": ConnectionOption("path", "", "Certificate authorities that sign its certificate."),
        "client_cert": ConnectionOption("path", "", "The certificate of this client."),
        "client_key": ConnectionOption("path", "", "Its key."),
    },
}
"""Driver -> option -> its type and meaning in Zuul. A row of `FORGES` may lack some of these, and have others: the
settings may contain an option that the row lacks, and `headgate check` reports that it has no effect."""


def without_effect(driver: str) -> dict[str, str]:
    """Return the options of a driver that have no effect, and why."""
    settings = FORGES[driver].settings if driver in FORGES else {}
    why = {name: one.doc.removeprefix(NO_EFFECT).rstrip(".") for name, one in settings.items()}
    return {name: text for name, text in why.items() if text != settings[name].doc.rstrip(".")}


def connect(driver: str, given: DriverOptions) -> Connected:
    """Connect to the forge that a section of the settings describes. Raise UserError if the section is invalid."""
    # Import the driver here, so that commands that only name drivers do not load them.
    return cast(_Package, importlib.import_module(FORGES[driver].module)).connect(given)
