"""The options that sections of the reference's forges have, for drivers to take over into their rows.

A row may leave some out, and have others: what it leaves out is accepted in the settings, and named by `headgate check`
as of no effect.
"""

from __future__ import annotations

from headgate.adapters.forges.registry import Setting

_HOST = Setting("text", "", "Host part of canonical project names. Default: the server.")
_KEY = Setting("path", "", "The private key with which git, and Gerrit's ssh, log in. Default: the account's own.")
_VERIFY = Setting("flag", "true", "Whether the server's certificate is checked.")
_HOOK = Setting("text", "", "The secret that deliveries of its webhooks are signed with.")
_CLONE = Setting("text", "", "Where repositories are cloned from. Default: baseurl.")
_KEEPALIVE = Setting("seconds", "60", "How often a connection is kept alive; 0: never.")
_TOKEN = Setting("text", "", "The token of the account that reads and reports.")

_KAFKA = {
    "kafka_bootstrap_servers": Setting("text", "", "Servers of Kafka that the plugin events-kafka writes to."),
    "kafka_topic": Setting("text", "gerrit", "Its topic."),
    "kafka_client_id": Setting("text", "", "The name of this client."),
    "kafka_group_id": Setting("text", "zuul", "Its consumer group."),
    "kafka_tls_key": Setting("path", "", "Key of its certificate."),
    "kafka_tls_cert": Setting("path", "", "Its certificate."),
    "kafka_tls_ca": Setting("path", "", "Authority of the servers."),
}
_KINESIS = {
    "aws_kinesis_region": Setting("text", "", "Region of the stream that the plugin events-aws-kinesis writes to."),
    "aws_kinesis_stream": Setting("text", "gerrit", "Its name."),
    "aws_kinesis_access_key": Setting("text", "", "The key that reads it."),
    "aws_kinesis_secret_key": Setting("text", "", "Its secret."),
}
_PUBSUB = {
    "gcloud_pubsub_project": Setting("text", "", "Project of the topic of the plugin events-gcloud-pubsub."),
    "gcloud_pubsub_topic": Setting("text", "gerrit", "Its name."),
    "gcloud_pubsub_subscription_id": Setting("text", "zuul", "The subscription."),
    "gcloud_pubsub_private_key": Setting("path", "", "The key of the account that reads it."),
}
STREAMS = frozenset({*_KAFKA, *_KINESIS, *_PUBSUB})
"""Of Gerrit: where else its events may come from."""

REFERENCE: dict[str, dict[str, Setting]] = {
    "gerrit": {
        "server": Setting("text", "", "The host of Gerrit. Needed."),
        "user": Setting("text", "", "The account, of ssh and HTTP. Needed."),
        "baseurl": Setting("text", "", "Root of its pages and API. Default: https://SERVER."),
        "canonical_hostname": _HOST,
        "ssh_server": Setting("text", "", "The host that takes ssh. Default: the server."),
        "port": Setting("integer:1,65535", "29418", "The port of its ssh."),
        "sshkey": _KEY,
        "keepalive": _KEEPALIVE,
        "password": Setting("text", "", "Of the account, for HTTP. Without it everything goes by ssh."),
        "auth_type": Setting("choice:basic,digest,form,gcloud_service", "basic", "How HTTP logs in."),
        "verify_ssl": _VERIFY,
        "git_over_ssh": Setting("flag", "false", "Whether git goes by ssh although there is a password."),
        "gitweb_url_template": Setting("text", "", "Address of a commit, of baseurl, project.name and sha."),
        "max_dependencies": Setting("integer", "", "A change with more dependencies is left alone. Default: any."),
        "replication_delay": Setting("seconds", "0", "For so long every event is held back."),
        "stream_events": Setting("flag", "true", "Whether events are streamed over ssh; else it is polled."),
        **_KAFKA,
        **_KINESIS,
        **_PUBSUB,
    },
    "github": {
        "server": Setting("text", "github.com", "The host; another one is GitHub Enterprise."),
        "canonical_hostname": _HOST,
        "app_id": Setting("text", "", "The number of the GitHub App."),
        "app_key": Setting("path", "", "Its private key, PEM."),
        "api_token": Setting("text", "", "A token, where the App is not installed or there is none."),
        "webhook_token": _HOOK,
        "sshkey": _KEY,
        "verify_ssl": _VERIFY,
        "rate_limit_logging": Setting("flag", "true", "Whether the budget that is left is logged."),
        "repo_cache": Setting("text", "", "Host of a cache of repositories, of GitHub Enterprise."),
        "repo_retry_timeout": Setting("seconds", "600", "How long a commit is waited for that the cache lacks."),
        "max_threads_per_installation": Setting("integer", "1", "Events of an installation that are read together."),
    },
    "gitlab": {
        "server": Setting("text", "gitlab.com", "The host."),
        "baseurl": Setting("text", "", "Root of its pages and API. Default: https://SERVER."),
        "canonical_hostname": _HOST,
        "cloneurl": _CLONE,
        "api_token": _TOKEN,
        "api_token_name": Setting("text", "", "The name that git logs in with, beside the token."),
        "webhook_token": _HOOK,
        "sshkey": _KEY,
        "keepalive": _KEEPALIVE,
        "disable_connection_pool": Setting("flag", "false", "Whether each request has a connection of its own."),
    },
    "pagure": {
        "server": Setting("text", "pagure.io", "The host."),
        "baseurl": Setting("text", "", "Root of its pages and API. Default: https://SERVER."),
        "canonical_hostname": _HOST,
        "cloneurl": _CLONE,
        "sshkey": _KEY,
        "api_token": _TOKEN,
        "app_name": Setting("text", "Zuul", "What stands before its flags."),
        "source_whitelist": Setting("text", "", "Addresses whose deliveries are believed without a signature."),
    },
    "git": {
        "baseurl": Setting("text", "", "Where its repositories are. Needed."),
        "poll_delay": Setting("seconds", "7200", "How often they are looked at."),
        "canonical_hostname": _HOST,
        "sshkey": _KEY,
    },
    "mqtt": {
        "server": Setting("text", "localhost", "The host of the broker."),
        "port": Setting("integer:1,65535", "1883", "Its port."),
        "keepalive": _KEEPALIVE,
        "user": Setting("text", "", "Who logs in."),
        "password": Setting("text", "", "The password of that user."),
        "ca_certs": Setting("path", "", "Authorities of the broker's certificate."),
        "certfile": Setting("path", "", "The certificate of this client."),
        "keyfile": Setting("path", "", "Its key."),
        "ciphers": Setting("text", "", "Ciphers that are allowed."),
    },
    "elasticsearch": {
        "uri": Setting("text", "", "Its servers, commas between. Needed."),
        "use_ssl": Setting("flag", "true", "Whether it is spoken to with TLS."),
        "verify_certs": Setting("flag", "true", "Whether its certificate is checked."),
        "ca_certs": Setting("path", "", "Authorities of its certificate."),
        "client_cert": Setting("path", "", "The certificate of this client."),
        "client_key": Setting("path", "", "Its key."),
    },
}
"""Driver -> option -> what the reference takes it for."""
