"""Declare the type `Option`, and the options of some sections, for `cli/options.py`."""

from __future__ import annotations

from typing import NamedTuple

from headgate.config.kinds.image import PUBLIC


class Option(NamedTuple):
    """Describe one option of the settings."""

    kind: str
    """Kind of value: text | path | number | seconds | integer | integer:least,most | flag | choice:a,b"""
    default: str
    doc: str


PROMETHEUS = "Port that serves health checks and metrics; 0: a free port. Default: none."
"""Meaning of `prometheus_port` in most sections."""

_AUTH: dict[str, Option] = {
    "driver": Option("choice:HS256,RS256,RS256withJWKS,OpenIDConnect", "HS256", "How tokens are signed."),
    "issuer_id": Option("text", "", "The `iss` of the tokens that this authenticator verifies. Required."),
    "client_id": Option("text", "", "The `aud` of the tokens: this server's client id at the provider. Required."),
    "audience": Option("text", "", "The `aud` of tokens that programs send. Default: client_id."),
    "client_secret": Option("text", "", "OpenIDConnect: this server's client secret at the provider, if any."),
    "scope": Option("text", "openid profile", "OpenIDConnect: the scopes that a login requests."),
    "load_user_info": Option(
        "flag", "true", "OpenIDConnect: whether a login also requests the user info of the provider."
    ),
    "secret": Option("text", "", "HS256: the key that signs the tokens, at least 32 bytes."),
    "public_key": Option("path", "", "RS256: file with the public key, PEM."),
    "keys_url": Option(
        "text",
        "",
        "JSON web key set: for RS256withJWKS a file; for OpenIDConnect a URL, if the provider does not publish it.",
    ),
    "realm": Option("text", "", "Name of the realm that rejected callers and login pages see. Default: client_id."),
    "default": Option("flag", "false", "Whether callers without a token are referred to this realm."),
    "uid_claim": Option("text", "sub", "The claim with the person's name."),
    "max_validity_time": Option(
        "seconds", "", "Maximum age of tokens. Default: no limit other than the tokens' own expiry."
    ),
    "skew": Option("seconds", "0", "How far clocks may differ."),
    "allow_authz_override": Option(
        "flag", "false", "Whether a claim `zuul.admin: [tenants]` makes a person administrator of these tenants."
    ),
}
"""Options of `[auth NAME]`."""

PEOPLE = Option(
    "text",
    "",
    "git: the `[auth NAME]` whose users have the same names as on the git server. People who log in with it and "
    "have the permission `approve` can approve on the pages under that name. Default: approve by pushing only.",
)
"""Option of a plain git connection."""

IMAGES = {
    "image": Option(
        "text", "", "Image for jobs that name none. Default: they use this machine's programs, in bubblewrap."
    ),
    "images": Option(
        "text",
        PUBLIC,
        "Images that jobs may name: patterns separated by spaces; `*` matches any text. The executor pulls the images, "
        "and may be able to reach registries that jobs cannot.",
    ),
    "image_dir": Option("path", "", "Directory for images. Default: `images` in state_dir."),
    "images_size_max_mb": Option(
        "integer:1,1000000000",
        "50000",
        "Maximum size of all images. Above half of it, the least recently used images are deleted.",
    ),
}
"""Options of executors about images."""

_LAUNCHER = {
    "host_keys": Option(
        "choice:learn,require",
        "learn",
        "For machines without the property `host-key`. learn: record the first key seen as that property, and accept "
        "no other from then on. require: do not use such machines.",
    ),
    "probe_interval": Option(
        "seconds",
        "60",
        "How often machines are probed, unless they or their provider have the property `probe-interval`; 0: never.",
    ),
    "prometheus_port": Option("integer:0,65535", "", PROMETHEUS),
    "prometheus_addr": Option("text", "127.0.0.1", "Address of that port."),
    "image_sources": Option(
        "text",
        "",
        "URL prefixes, separated by spaces, from which the launcher may fetch images that jobs build, such as that of "
        "a bucket. Headgate's own URLs and [logs] root are always allowed.",
    ),
    "image_dir": Option("path", "", "Directory for image files during an upload. Default: in state_dir."),
    "image_size_max_mb": Option("integer:1,100000000", "50000", "Maximum size of one image file, unpacked."),
}
"""Options of `[launcher]`."""

_LOGS: dict[str, Option] = {
    "url": Option(
        "text",
        "",
        "Storage for logs and artifacts that outlives executors: a directory that executors and web share, or "
        "`s3://BUCKET/PREFIX`, which needs `pip install 'headgate[s3]'`. Default: they stay on their executor.",
    ),
    "endpoint": Option("text", "", "s3: URL of a server other than Amazon's, such as `https://minio.example:9000`."),
    "region": Option("text", "us-east-1", "s3: region of the bucket."),
    "access_key": Option(
        "text", "", "s3: id of the access key. Default: the credentials of the environment (`AWS_…`) or the machine."
    ),
    "secret_key_file": Option(
        "path", "", "s3: file with the secret of the access key; other users must not be able to read it."
    ),
    "root": Option(
        "text",
        "",
        "Public URL of the storage, such as that of a public bucket; the `log_url` of finished builds then points "
        "there. Default: logs are served by the pages, to people who may read their tenant.",
    ),
    "upload_interval": Option(
        "integer:1,86400",
        "30",
        "Seconds between two uploads of a running build's output. If the executor is killed, output since the last "
        "upload is lost.",
    ),
    "keep_days": Option("integer:0,100000", "0", "How long to keep logs; 0: forever."),
    "artifacts_keep_days": Option(
        "integer:0,100000",
        "0",
        "How long to keep other files of builds; 0: as long as their logs.",
    ),
    "size_max_mb": Option(
        "integer:0,1000000000000",
        "0",
        "Maximum size of all files; above it, files of the oldest builds are deleted; 0: no limit.",
    ),
}
"""Options of `[logs]`."""

_FINGERGW: dict[str, Option] = {
    "port": Option("integer:0,65535", "79", "Port that serves logs to `finger BUILD@HOST`; 0: a free port."),
    "listen_address": Option("text", "::", "Address to listen on; `::` is every IPv4 and IPv6 address."),
    "public_port": Option("integer:1,65535", "", "Port under which clients reach the gateway. Default: port."),
    "tls_cert": Option("path", "", "Certificate of the gateway, PEM. TLS needs all three tls options."),
    "tls_key": Option("path", "", "Private key of `tls_cert`."),
    "tls_ca": Option("path", "", "CA of the certificates that clients must present."),
    "prometheus_port": Option("integer:0,65535", "", PROMETHEUS),
    "prometheus_addr": Option("text", "127.0.0.1", "Address of that port."),
}
"""Options of `[fingergw]`."""

_INVENTORY: dict[str, Option] = {
    "prefix": Option(
        "text", "/", "Key prefix before `runm/metadata` in the store. Default with `compatible`: `runm-metadata/`."
    ),
    "compatible": Option(
        "flag", "false", "Store data and definitions in the format of runm-metadata, for programs written for it."
    ),
    "listen_address": Option("text", "127.0.0.1", "Address of the gRPC service."),
    "port": Option("integer:0,65535", "10002", "Port of the gRPC service; 0 picks a free one."),
    "http_port": Option("integer:0,65535", "", "Port for JSON over HTTP. Default: not served."),
    "identity": Option(
        "choice:verify,trust",
        "verify",
        "verify: callers need the operator's token, a token of an `[auth NAME]`, or a client certificate. trust: "
        "believe the names that callers give, for clients without tokens; on loopback only.",
    ),
    "open_partitions": Option(
        "text", "", "Partitions open to credentials that name no partition, separated by spaces; `*`: all."
    ),
    "cert_path": Option("path", "", "Certificate for gRPC and HTTP, PEM. Default: the one in `[tls]`."),
    "key_path": Option("path", "", "Private key of `cert_path`."),
    "client_ca_path": Option("path", "", "CA of the certificates that clients must present. Default: they need none."),
    "service_name": Option("text", "runmachine-metadata", "Name under which clients find the service in etcd."),
}
"""Options of `[inventory]`."""

_MESSAGES: dict[str, Option] = {
    "url": Option("text", "", "`sqlite:///FILE` or `postgresql://…`. Default: an SQLite file in state_dir."),
    "listen_address": Option("text", "127.0.0.1", "Address that `headgate queue serve` listens on."),
    "port": Option("integer:0,65535", "5000", "Port that it listens on; 0 picks a free one."),
    "application_bytes_max": Option(
        "integer:0,9999999999999",
        "10000000000",
        "Maximum size of all messages of an application, and of what is stored with them; each message counts 200 "
        "bytes more than its body. 0: no limit. Posts beyond it get status 429.",
    ),
    "application_messages_max": Option(
        "integer:0,9999999999", "0", "Maximum number of messages of an application; 0: no limit."
    ),
    "application_rate_max": Option(
        "integer:0,1000000", "0", "Maximum posts per second of an application to each server; 0: no limit."
    ),
    "application_queues_max": Option(
        "integer:0,1000000", "10000", "Maximum number of queues of an application; 0: no limit."
    ),
    "application_partitions_max": Option(
        "integer:0,9999999", "50000", "Maximum number of partitions of all queues of an application; 0: no limit."
    ),
}
"""Options of `[messages]`."""

SECTIONS = {
    "auth *": _AUTH,
    "fingergw": _FINGERGW,
    "inventory": _INVENTORY,
    "launcher": _LAUNCHER,
    "logs": _LOGS,
    "messages": _MESSAGES,
}
"""Kind of section -> its options, for the sections of this module."""
