"""Read a cloud from `clouds.yaml`, the file of OpenStack's own tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from headgate.base.certificates import client_context
from headgate.base.errors import UserError
from headgate.base.files import text_of

SEARCHED = ("~/.config/openstack/clouds.yaml", "/etc/openstack/clouds.yaml")
SECURE = "secure.yaml"
PASSWORD = frozenset({"", "password", "v3password"})
TOKEN = frozenset({"token", "v3token"})
APPLICATION = "v3applicationcredential"
NOBODY = frozenset({"none", "admin_token"})
"""Authentication types without Keystone: the URL is fixed, and so is the token if one is needed."""


@dataclass(frozen=True, slots=True)
class Place:
    """Describe one cloud of `clouds.yaml`."""

    name: str
    auth_url: str
    login: Mapping[str, Any] = field(repr=False)
    """Body of the login request to Keystone; empty if there is no Keystone."""
    endpoints: Mapping[str, str] = field(default_factory=dict)
    """Type of service -> URL that replaces the one in Keystone's catalogue."""
    token: str = field(default="", repr=False)
    region: str = ""
    interface: str = "public"
    verify: str | bool = True


def places(file: str, env: Mapping[str, str]) -> tuple[Path, dict[str, Any]]:
    """Return the file with clouds, and the clouds. Raise UserError if there is none."""
    named = file or env.get("OS_CLIENT_CONFIG_FILE", "")
    found = next((p for p in ([named] if named else SEARCHED) if Path(p).expanduser().is_file()), "")
    if not found:
        raise UserError(f"there is no {named or 'clouds.yaml in ' + ' or '.join(SEARCHED)}: set config_file")
    path = Path(found).expanduser()
    clouds = _read(path)
    # OpenStack's tools support passwords in this second file, so that the first one can be shared.
    secure = path.with_name(SECURE)
    if secure.is_file() and secure != path:
        clouds = _merged(clouds, _read(secure))
    return path, clouds


def _read(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(text_of(path))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        # The text of the error may contain a secret.
        raise UserError(f"{path} cannot be read: {type(error).__name__}") from None
    clouds = document.get("clouds") if isinstance(document, dict) else None
    if not isinstance(clouds, dict):
        raise UserError(f"{path}: `clouds` is missing")
    return clouds


def _merged(one: Any, other: Any) -> Any:
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: _merged(one.get(name), other.get(name)) for name in [*one, *(n for n in other if n not in one)]}
    return one if other is None else other


def place(name: str, file: str, env: Mapping[str, str]) -> Place:
    """Return the cloud with this name; for an empty name, OS_CLOUD or the only one. Raise UserError."""
    path, clouds = places(file, env)
    name = name or env.get("OS_CLOUD", "") or (next(iter(clouds)) if len(clouds) == 1 else "")
    cloud = clouds.get(name)
    if not isinstance(cloud, dict):
        raise UserError(f"{path} has no cloud {name!r}; it has {', '.join(map(str, clouds)) or 'none'}")
    raw = cloud.get("auth")
    auth: dict[str, Any] = raw if isinstance(raw, dict) else {}
    kind = str(cloud.get("auth_type") or ("" if not auth.get("application_credential_secret") else APPLICATION))
    where = f"{path}: cloud {name}"
    endpoints = {
        service: str(cloud[f"{key}_endpoint_override"]).rstrip("/")
        for service, key in (
            ("compute", "compute"),
            ("image", "image"),
            ("network", "network"),
            ("block-storage", "block_storage"),
            ("block-storage", "volume"),
        )
        if cloud.get(f"{key}_endpoint_override")
    }
    if kind in NOBODY and auth.get("endpoint"):
        endpoints.setdefault("compute", str(auth["endpoint"]).rstrip("/"))
    if kind in NOBODY and "compute" not in endpoints:
        raise UserError(f"{where}: without Keystone, `auth: endpoint` must be the URL of Nova")
    login = {} if kind in NOBODY else _login(kind, auth, where)
    verify: str | bool = cloud.get("verify") is not False
    # Relative to the file, not to the directory that a launcher happens to start in.
    if verify and cloud.get("cacert"):
        verify = str(path.parent / Path(str(cloud["cacert"])).expanduser())
        try:
            client_context(verify)
        except OSError as error:
            raise UserError(f"{where}: cacert {verify} cannot be used: {error}") from error
    return Place(
        name,
        str(auth.get("auth_url") or "").rstrip("/"),
        login,
        endpoints,
        str(auth.get("token") or "") if kind in NOBODY else "",
        str(cloud.get("region_name") or ""),
        # Old files have `publicURL` under `endpoint_type`.
        str(cloud.get("interface") or cloud.get("endpoint_type") or "public").removesuffix("URL"),
        verify,
    )


def _login(kind: str, auth: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not auth.get("auth_url"):
        raise UserError(f"{where}: `auth: auth_url` is missing")
    if kind == APPLICATION:
        credential: dict[str, Any] = {"secret": auth.get("application_credential_secret")}
        if auth.get("application_credential_id"):
            credential["id"] = auth["application_credential_id"]
        else:
            credential |= {"name": auth.get("application_credential_name"), "user": _user(auth)}
        if not credential["secret"] or not (credential.get("id") or credential.get("name")):
            raise UserError(f"{where}: an application credential needs an id (or a name and a user) and a secret")
        return {"identity": {"methods": ["application_credential"], "application_credential": credential}}
    if kind in PASSWORD:
        if not auth.get("password") or not (auth.get("username") or auth.get("user_id")):
            raise UserError(f"{where}: `auth` needs username and password, or an application credential")
        identity: dict[str, Any] = {
            "methods": ["password"],
            "password": {"user": {**_user(auth), "password": auth["password"]}},
        }
    elif kind in TOKEN:
        identity = {"methods": ["token"], "token": {"id": auth.get("token")}}
    else:
        raise UserError(f"{where}: auth_type {kind!r} is not supported; use password or {APPLICATION}")
    scope = _scope(auth)
    return {"identity": identity} | ({"scope": scope} if scope else {})


def _domain(auth: Mapping[str, Any], kind: str) -> dict[str, Any]:
    if auth.get(f"{kind}_domain_id") or auth.get("domain_id"):
        return {"id": auth.get(f"{kind}_domain_id") or auth["domain_id"]}
    named = auth.get(f"{kind}_domain_name") or auth.get("domain_name") or auth.get("default_domain")
    # Keystone creates its first domain with this id.
    return {"name": named} if named else {"id": "default"}


def _user(auth: Mapping[str, Any]) -> dict[str, Any]:
    if auth.get("user_id"):
        return {"id": auth["user_id"]}
    return {"name": auth.get("username"), "domain": _domain(auth, "user")}


def _scope(auth: Mapping[str, Any]) -> dict[str, Any]:
    if project := auth.get("project_id") or auth.get("tenant_id"):
        return {"project": {"id": project}}
    if project := auth.get("project_name") or auth.get("tenant_name"):
        return {"project": {"name": project, "domain": _domain(auth, "project")}}
    return {}
