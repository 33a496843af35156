"""What a section `[auth NAME]` may say of those who sign tokens."""

from __future__ import annotations

from headgate.cli.option import Option

AUTH: dict[str, Option] = {
    "driver": Option("choice:HS256,RS256,RS256withJWKS,OpenIDConnect", "HS256", "How tokens are signed."),
    "issuer_id": Option("text", "", "The `iss` of the tokens this authenticator is for. Needed."),
    "client_id": Option("text", "", "Their `aud`; what a provider knows this server as. Needed."),
    "audience": Option("text", "", "The `aud` of tokens that programs bring. Default: client_id."),
    "client_secret": Option("text", "", "OpenIDConnect: what the provider gave this server, if it did."),
    "scope": Option("text", "openid profile", "OpenIDConnect: what a login asks for."),
    "load_user_info": Option("flag", "true", "OpenIDConnect: whether a login asks for more than its token says."),
    "secret": Option("text", "", "HS256: what they are signed with, at least 32 bytes."),
    "public_key": Option("path", "", "RS256: file with the public key, PEM."),
    "keys_url": Option("text", "", "JSON web key set: a file with RS256withJWKS, else where it is, if not published."),
    "realm": Option("text", "", "Said to who is refused, and where to log in. Default: client_id."),
    "default": Option("flag", "false", "The one whose realm is said to who brings no token."),
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
"""Of a connection of plain git."""
