"""The options that sections of the reference's forges have, for drivers to take over into their rows.

A row may leave some out, and have others: what it leaves out is accepted in the settings, and named by `headgate check`
as of no effect.
"""

from __future__ import annotations

from headgate.adapters.option import ConnectionOption

_HOST = ConnectionOption("text", "", "Host part of canonical project names. Default: the server.")
_KEY = ConnectionOption(
    "path", "", "The private key with which git, and Gerrit's ssh, log in. Default: the account's own."
)
_VERIFY = ConnectionOption("flag", "true", "Whether the server's certificate is checked.")
_HOOK = ConnectionOption("text", "", "The secret that deliveries of its webhooks are signed with.")
_CLONE = ConnectionOption("text", "", "Where repositories are cloned from. Default: baseurl.")
_KEEPALIVE = ConnectionOption("seconds", "60", "Interval of keep-alives of a connection; 0: none.")
_TOKEN = ConnectionOption("text", "", "The token of the account that reads and reports.")

_KAFKA = {
    "kafka_bootstrap_servers": ConnectionOption("text", "", "Servers of Kafka that the plugin events-kafka writes to."),
    "kafka_topic": ConnectionOption("text", "gerrit", "Its topic."),
    "kafka_client_id": ConnectionOption("text", "", "The name of this client."),
    "kafka_group_id": ConnectionOption("text", "zuul", "Its consumer group."),
    "kafka_tls_key": ConnectionOption("path", "", "Key of its certificate."),
    "kafka_tls_cert": ConnectionOption("path", "", "Its certificate."),
    "kafka_tls_ca": ConnectionOption("path", "", "Authority of the servers."),
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
        "ssh_server": ConnectionOption("text", "", "The host that takes ssh. Default: the server."),
        "port": ConnectionOption("integer:1,65535", "29418", "The port of its ssh."),
        "sshkey": _KEY,
        "keepalive": _KEEPALIVE,
        "password": ConnectionOption("text", "", "Of the account, for HTTP. Without it everything goes by ssh."),
        "auth_type": ConnectionOption("choice:basic,digest,form,gcloud_service", "basic", "How HTTP logs in."),
        "verify_ssl": _VERIFY,
        "git_over_ssh": ConnectionOption("flag", "false", "Whether git goes by ssh although there is a password."),
        "gitweb_url_template": ConnectionOption("text", "", "Address of a commit, of baseurl, project.name and sha."),
        "max_dependencies": ConnectionOption(
            "integer", "", "A change with more dependencies is left alone. Default: any."
        ),
        "replication_delay": ConnectionOption("seconds", "0", "For so long every event is held back."),
        "stream_events": ConnectionOption("flag", "true", "Whether events are streamed over ssh; else it is polled."),
        **_KAFKA,
        **_KINESIS,
        **_PUBSUB,
    },
    "github": {
        "server": ConnectionOption("text", "github.com", "The host; another one is GitHub Enterprise."),
        "canonical_hostname": _HOST,
        "app_id": ConnectionOption("text", "", "The number of the GitHub App."),
        "app_key": ConnectionOption("path", "", "Its private key, PEM."),
        "api_token": ConnectionOption("text", "", "A token, where the App is not installed or there is none."),
        "webhook_token": _HOOK,
        "sshkey": _KEY,
        "verify_ssl": _VERIFY,
        "rate_limit_logging": ConnectionOption("flag", "true", "Whether the budget that is left is logged."),
        "repo_cache": ConnectionOption("text", "", "Host of a cache of repositories, of GitHub Enterprise."),
        "repo_retry_timeout": ConnectionOption(
            "seconds", "600", "How long a commit is waited for that the cache lacks."
        ),
        "max_threads_per_installation": ConnectionOption(
            "integer", "1", "Events of an installation that are read together."
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
        "app_name": ConnectionOption("text", "Zuul", "What stands before its flags."),
        "source_whitelist": ConnectionOption(
            "text", "", "Addresses whose deliveries are believed without a signature."
        ),
    },
    "git": {
        "baseurl": ConnectionOption("text", "", "Where its repositories are. Needed."),
        "poll_delay": ConnectionOption("seconds", "7200", "How often they are looked at."),
        "canonical_hostname": _HOST,
        "sshkey": _KEY,
    },
    "mqtt": {
        "server": ConnectionOption("text", "localhost", "The host of the broker."),
        "port": ConnectionOption("integer:1,65535", "1883", "Its port."),
        "keepalive": _KEEPALIVE,
        "user": ConnectionOption("text", "", "Who logs in."),
        "password": ConnectionOption("text", "", "The password of that user."),
        "ca_certs": ConnectionOption("path", "", "Authorities of the broker's certificate."),
        "certfile": ConnectionOption("path", "", "The certificate of this client."),
        "keyfile": ConnectionOption("path", "", "Its key."),
        "ciphers": ConnectionOption("text", "", "Ciphers that are allowed."),
    },
    "elasticsearch": {
        "uri": ConnectionOption("text", "", "Its servers, commas between. Needed."),
        "use_ssl": ConnectionOption("flag", "true", "Whether it is spoken to with TLS."),
        "verify_certs": ConnectionOption("flag", "true", "Whether its certificate is checked."),
        "ca_certs": ConnectionOption("path", "", "Authorities of its certificate."),
        "client_cert": ConnectionOption("path", "", "The certificate of this client."),
        "client_key": ConnectionOption("path", "", "Its key."),
    },
}
"""Driver -> option -> its type and meaning in the reference."""
