"""Find the keys of an account: in the settings, a file, the environment or the machine, or lent by a role."""

from __future__ import annotations

import asyncio
import configparser
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from headgate.adapters.nodes.clouds.aws import query
from headgate.adapters.nodes.clouds.aws.signature import AwsKeys, signed
from headgate.adapters.nodes.clouds.http import CloudResponse, Http
from headgate.ports.cloud import CloudUnavailable, OverQuota

EARLY_S = 300.0
"""Keys are replaced this long before they expire."""
MACHINE = "http://169.254.169.254"
CONTAINER = "http://169.254.170.2"
MACHINE_MAX_S = 5.0
"""Time limit for the metadata service, which does not exist on machines outside of AWS."""
NEAR = {"localhost", "127.0.0.1", "169.254.170.2", "169.254.170.23", "fd00:ec2::23"}
"""Hosts that may be asked for keys without TLS."""


@dataclass(frozen=True, slots=True)
class AwsKeySource:
    """Hold what the settings of a connection say about keys; empty means not set."""

    access: str = ""
    secret: str = ""
    file: str = ""
    profile: str = ""
    role: str = ""
    web_identity: str = ""
    """Path of the token file with which a role is assumed."""

    def __repr__(self) -> str:
        return f"Source(file={self.file!r}, profile={self.profile!r}, role={self.role!r})"


class _Machine(msgspec.Struct):
    AccessKeyId: str
    SecretAccessKey: str
    Token: str = ""
    Expiration: str = ""


class AwsCredentials:
    """Supply valid keys, and replace temporary ones in time."""

    def __init__(
        self,
        http: Http,
        source: AwsKeySource,
        sts: str,
        region: str,
        env: Mapping[str, str],
        now_s: Callable[[], float],
    ) -> None:
        """Take `sts`, the address of the service for temporary keys."""
        self._http, self._source, self._sts, self._region = http, source, sts, region
        self._env, self.now_s = env, now_s
        self._keys: AwsKeys | None = None
        self._turn = asyncio.Lock()

    async def keys(self) -> AwsKeys:
        """Return the keys for signing requests. Raise CloudUnavailable if there are none."""
        # One request renews the keys for all: STS limits the rate of its calls.
        async with self._turn:
            if self._keys is None or self._keys.until_s - EARLY_S <= self.now_s():
                self._keys = await self._found()
            return self._keys

    def forget(self, keys: AwsKeys) -> None:
        """Discard the expired keys, so that the next request gets new ones."""
        # Several requests fail with the same keys; only the first of them may discard keys, not those that were just
        # renewed.
        if self._keys == keys:
            self._keys = None

    async def _found(self) -> AwsKeys:
        source, env = self._source, self._env
        if source.access and source.secret:
            return await self._as_role(AwsKeys(source.access, source.secret))
        profile = self._profile(source.profile or env.get("AWS_PROFILE", ""))
        # Who names a file or a profile means that account: keys of the environment or the machine would be another
        # one's.
        own = bool(source.file or source.profile)
        if not own and env.get("AWS_ACCESS_KEY_ID") and env.get("AWS_SECRET_ACCESS_KEY"):
            keys = AwsKeys(env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"], env.get("AWS_SESSION_TOKEN", ""))
            return await self._as_role(keys)
        web = source.web_identity or ("" if own else env.get("AWS_WEB_IDENTITY_TOKEN_FILE", ""))
        role = source.role or ("" if own else env.get("AWS_ROLE_ARN", ""))
        if web and role:
            return await self._lent(await asyncio.to_thread(_token, web), role)
        if profile is not None:
            return await self._as_role(profile)
        if own:
            raise CloudUnavailable(
                f"no keys in {self._file()}: a profile {source.profile or 'default'} with aws_access_key_id"
            )
        return await self._as_role(await self._of_the_machine())

    def _file(self) -> Path:
        name = self._source.file or self._env.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials"
        return Path(name).expanduser()

    def _profile(self, name: str) -> AwsKeys | None:
        read = configparser.RawConfigParser()
        try:
            read.read_string(self._file().read_text())
        except (OSError, UnicodeDecodeError, configparser.Error) as error:
            if self._source.file or self._source.profile:
                # Neither the error's text nor the error itself: a parser quotes the line that it does not understand,
                # possibly a key.
                raise CloudUnavailable(f"{self._file()} cannot be read: {type(error).__name__}") from None
            return None
        section = name or "default"
        if not read.has_section(section):
            return None
        settings = read[section]
        access, secret = settings.get("aws_access_key_id", ""), settings.get("aws_secret_access_key", "")
        return AwsKeys(access, secret, settings.get("aws_session_token", "")) if access and secret else None

    async def _as_role(self, keys: AwsKeys) -> AwsKeys:
        if not self._source.role:
            return keys
        arguments = {"RoleArn": self._source.role, "RoleSessionName": "headgate"}
        body = query.form("AssumeRole", "2011-06-15", arguments)
        headers = signed(keys, self._region, "sts", self._sts, _FORM, body, datetime.fromtimestamp(self.now_s(), UTC))
        return _granted(await self._http.ask("POST", self._sts, headers, body), "AssumeRole")

    async def _lent(self, token: str, role: str) -> AwsKeys:
        arguments = {"RoleArn": role, "RoleSessionName": "headgate", "WebIdentityToken": token}
        body = query.form("AssumeRoleWithWebIdentity", "2011-06-15", arguments)
        return _granted(await self._http.ask("POST", self._sts, _FORM, body), "AssumeRoleWithWebIdentity")

    async def _of_the_machine(self) -> AwsKeys:
        env = self._env
        path, url = env.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"), env.get("AWS_CONTAINER_CREDENTIALS_FULL_URI")
        if path or url:
            where = f"{CONTAINER}{path}" if path else str(url)
            parts = urlsplit(where)
            # The request carries a token and the answer keys; without TLS both stay on this machine or its link.
            if parts.scheme != "https" and parts.hostname not in NEAR:
                raise CloudUnavailable("AWS_CONTAINER_CREDENTIALS_FULL_URI leads elsewhere without TLS")
            file = env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
            token = await asyncio.to_thread(_token, file) if file else env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")
            answer = await self._http.ask("GET", where, {"authorization": token} if token else {}, max_s=MACHINE_MAX_S)
            return _of(answer, where)
        return await self._of_an_instance(env.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", MACHINE).rstrip("/"))

    async def _of_an_instance(self, at: str) -> AwsKeys:
        # Version 2 of the metadata service, which many machines demand, begins with a PUT: a tricked proxy seldom sends
        # one.
        lasting = {"x-aws-ec2-metadata-token-ttl-seconds": "300"}
        try:
            token = await self._http.ask("PUT", f"{at}/latest/api/token", lasting, max_s=MACHINE_MAX_S)
        except CloudUnavailable as error:
            text = "no keys for AWS: not in the settings, a file or the environment, and this machine has no role"
            raise CloudUnavailable(f"{text} ({error})") from error
        headers = {"x-aws-ec2-metadata-token": token.body.decode("ascii", "replace").strip()}
        place = f"{at}/latest/meta-data/iam/security-credentials/"
        roles = await self._http.ask("GET", place, headers, max_s=MACHINE_MAX_S)
        role = roles.body.decode(errors="replace").split()
        # The role becomes part of a path, so only the characters of AWS's names are accepted.
        if token.status >= 300 or roles.status >= 300 or not role or not re.fullmatch(r"[\w+=,.@-]+", role[0]):
            raise CloudUnavailable("no keys for AWS: this machine has no role")
        return _of(await self._http.ask("GET", place + role[0], headers, max_s=MACHINE_MAX_S), place)


_FORM = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}


def _token(file: str) -> str:
    try:
        return Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CloudUnavailable(f"{file} cannot be read: {type(error).__name__}") from None


def _granted(answer: CloudResponse, call: str) -> AwsKeys:
    try:
        lent = query.read(answer, "AWS STS")[f"{call}Result"]["Credentials"]
        return AwsKeys(lent["AccessKeyId"], lent["SecretAccessKey"], lent["SessionToken"], _time(lent["Expiration"]))
    except (query.AwsRefused, OverQuota) as error:
        raise CloudUnavailable(str(error)) from error
    except (KeyError, TypeError, ValueError):
        raise CloudUnavailable("AWS STS lends no keys") from None  # the answer may contain some


def _of(answer: CloudResponse, where: str) -> AwsKeys:
    where = urlsplit(where).hostname or ""  # the rest of a container's address is a secret
    if answer.status >= 300:
        raise CloudUnavailable(f"{where} answers {answer.status} when it is asked for keys")
    try:
        lent = msgspec.json.decode(answer.body, type=_Machine)
        return AwsKeys(lent.AccessKeyId, lent.SecretAccessKey, lent.Token, _time(lent.Expiration))
    except (msgspec.DecodeError, ValueError):
        raise CloudUnavailable(f"{where} lends no keys") from None


def _time(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() if text else float("inf")
