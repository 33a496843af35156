"""Declare the options of sections about tokens, images, launchers and logs, and what an option is."""

from __future__ import annotations

from typing import NamedTuple

from headgate.config.kinds.image import PUBLIC


class Option(NamedTuple):
    """Describe one option of the settings."""

    kind: str
    """Kind of value: text | path | number | seconds | integer | integer:least,most | flag | choice:a,b"""
    default: str
    doc: str


AUTH: dict[str, Option] = {
    "driver": Option("choice:HS256,RS256,RS256withJWKS,OpenIDConnect", "HS256", "How tokens are signed."),
    "issuer_id": Option("text", "", "The `iss` of the tokens that this authenticator verifies. Required."),
    "client_id": Option("text", "", "Their `aud`; the name under which a provider knows this server. Required."),
    "audience": Option("text", "", "The `aud` of tokens that programs bring. Default: client_id."),
    "client_secret": Option("text", "", "OpenIDConnect: the secret that the provider gave this server, if any."),
    "scope": Option("text", "openid profile", "OpenIDConnect: what a login asks for."),
    "load_user_info": Option("flag", "true", "OpenIDConnect: whether a login asks for more than its token says."),
    "secret": Option("text", "", "HS256: the key that signs them, at least 32 bytes."),
    "public_key": Option("path", "", "RS256: file with the public key, PEM."),
    "keys_url": Option(
        "text",
        "",
        "JSON web key set: a file with RS256withJWKS, otherwise its URL, if the provider does not publish it.",
    ),
    "realm": Option("text", "", "Name of the realm, for rejected callers and for logins. Default: client_id."),
    "default": Option("flag", "false", "Whether callers without a token are told this realm."),
    "uid_claim": Option("text", "sub", "The claim that names the person."),
    "max_validity_time": Option("seconds", "", "Tokens must not be older than this. Default: as they say."),
    "skew": Option("seconds", "0", "How far clocks may differ."),
    "allow_authz_override": Option(
        "flag", "false", "Whether a claim `zuul.admin: [tenants]` makes its bearer an administrator there."
    ),
}
"""Options of `[auth NAME]`."""

PEOPLE = Option(
    "text",
    "",
    "git: the `[auth NAME]` whose names of people are those of the git server: who logs in with it, and has "
    "the permission `approve`, approves on the pages under that name. Default: approvals are pushed.",
)
"""Option of a connection of plain git."""

IMAGES = {
    "image": Option(
        "text", "", "Image of jobs that name none. Default: their programs are those of this machine, in bubblewrap."
    ),
    "images": Option(
        "text",
        PUBLIC,
        "Images that jobs may name: patterns with space between, `*` for any text. The executor fetches them, and may "
        "reach registries that jobs do not.",
    ),
    "image_dir": Option("path", "", "Where images are stored. Default: `images` in state_dir."),
    "images_size_max_mb": Option(
        "integer:1,1000000000",
        "50000",
        "Size of all images; above half of it, the least recently used ones are deleted.",
    ),
}
"""Options of executors about images."""

LAUNCHER = {
    "host_keys": Option(
        "choice:learn,require",
        "learn",
        "For machines without the property `host-key`. learn: the key seen first is recorded there, and they are "
        "held to it. require: they are not used.",
    ),
    "probe_interval": Option(
        "seconds",
        "60",
        "How often machines are probed, unless they or their provider have the property `probe-interval`; 0: never.",
    ),
    "prometheus_port": Option("integer:0,65535", "", "Port of health and figures, 0: a free one. Default: none."),
    "prometheus_addr": Option("text", "127.0.0.1", "Address of that port."),
    "image_sources": Option(
        "text",
        "",
        "Addresses, separated by spaces, below which images that jobs build may lie, such as a bucket's. What Headgate "
        "itself serves and [logs] root are always among them.",
    ),
    "image_dir": Option("path", "", "Files of such images while they are uploaded. Default: in state_dir."),
    "image_size_max_mb": Option("integer:1,100000000", "50000", "Size of one such file, unpacked."),
}
"""Options of `[launcher]`."""

LOGS: dict[str, Option] = {
    "url": Option(
        "text",
        "",
        "Where logs and artifacts stay when their executor is gone: a directory that executors and web share, or "
        "`s3://BUCKET/PREFIX`, which needs `pip install 'headgate[s3]'`. Default: they stay with their executor.",
    ),
    "endpoint": Option("text", "", "s3: the URL of another server than Amazon's, as `https://minio.example:9000`."),
    "region": Option("text", "us-east-1", "s3: the region of the bucket."),
    "access_key": Option(
        "text", "", "s3: the id of the key. Default: what the environment (`AWS_…`) or the machine has."
    ),
    "secret_key_file": Option("path", "", "s3: the file with its secret, which nobody else may read."),
    "root": Option(
        "text",
        "",
        "URL under which everybody may read the store itself, as of a public bucket; then `log_url` of builds that "
        "ended is there. Default: they are read through the pages, by who may read their tenant.",
    ),
    "upload_interval": Option(
        "integer:1,86400",
        "30",
        "Seconds between two uploads of a running build's output; if the executor is killed, later output is lost.",
    ),
    "keep_days": Option("integer:0,100000", "0", "How long logs are kept; 0: for ever."),
    "artifacts_keep_days": Option(
        "integer:0,100000",
        "0",
        "How long other files of builds are kept; 0: as long as their logs.",
    ),
    "size_max_mb": Option("integer:0,1000000000000", "0", "Above this, the oldest builds lose their files; 0: never."),
}
"""Options of `[logs]`."""
