"""Options of a section `[auth NAME]`, which describes an issuer of tokens."""

from __future__ import annotations

from headgate.cli.option import Option

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

PEOPLE = Option(
    "text",
    "",
    "git: the `[auth NAME]` whose names of people are those of the git server: who logs in with it, and has "
    "the permission `approve`, approves on the pages under that name. Default: approvals are pushed.",
)
"""Option of a connection of plain git."""
