"""Call EC2 with the access keys of an account, from the settings, a file, the environment, the machine or a role."""

from __future__ import annotations

import asyncio
import configparser
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from headgate.adapters.nodes.clouds.aws import query
from headgate.adapters.nodes.clouds.aws.launch import COUNTED_QUOTAS
from headgate.adapters.nodes.clouds.http import ANSWER_MAX_S, CloudResponse, Http, Shared
from headgate.base.files import text_of
from headgate.ports.clouds import NODE_TAG, Amounts, CloudUnavailable, OverQuota

T = TypeVar("T")
VERSION = "2016-11-15"
PAGE = 500
PAGES_MAX = 200
GONE = "terminated"
NONE = ("NotFound", "Malformed", "InvalidAMIID.Unavailable")
"""Parts of error codes that mean that the resource does not exist, or no longer exists."""
_OURS: query.Arguments = {"Filter": [{"Name": "tag-key", "Value": [NODE_TAG]}]}
EARLY_S = 300.0
"""Time before their expiry at which keys are replaced."""
MACHINE = "http://169.254.169.254"
CONTAINER = "http://169.254.170.2"
MACHINE_MAX_S = 5.0
"""Time limit for the metadata service, which does not exist on machines outside AWS."""
NEAR = {"localhost", "127.0.0.1", "169.254.170.2", "169.254.170.23", "fd00:ec2::23"}
"""Hosts from which keys may be requested without TLS."""
_FORM = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}


class AwsService:
    """Send signed requests to one service in one region."""

    def __init__(self, http: Http, credentials: AwsCredentials, region: str, name: str) -> None:
        """Take the `name` of the service, as used in signatures."""
        self._http, self._credentials, self.region, self._name = http, credentials, region, name

    async def ask(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        read: Callable[[CloudResponse], T],
        max_s: float = ANSWER_MAX_S,
    ) -> T:
        """Return the parsed answer; if `read` raises AwsKeysExpired, repeat the request with new keys."""
        # Temporary keys can expire early (a revoked session, a wrong clock), so one more request is made with new ones.
        for last in (False, True):
            keys = await self._credentials.keys()
            now = datetime.fromtimestamp(self._credentials.now_s(), UTC)
            every = query.signed(keys, self.region, self._name, url, headers, body, now, method)
            try:
                return read(await self._http.ask(method, url, every, body, max_s, max_s))
            except query.AwsKeysExpired:
                self._credentials.forget(keys)
                if last:
                    raise
        raise AssertionError("the second attempt returns or raises")


class Ec2:
    """Call EC2 in one region for one account."""

    def __init__(self, http: Http, credentials: AwsCredentials, region: str, url: str, quotas_url: str) -> None:
        self._http, self.credentials, self.region = http, credentials, region
        self._url, self._quotas_url = url, quotas_url
        self.ours = Shared(self._ours)
        """Every instance that has the tag of a node, by its id."""
        self.our_volumes = Shared(self._our_volumes)
        self._types: dict[str, tuple[int, int]] = {}
        """Instance type -> virtual cores and memory in MiB, which never change."""

    async def call(self, action: str, arguments: query.Arguments) -> dict[str, Any]:
        """Call an action of EC2, and return its parsed response. Raise AwsRefused, OverQuota, CloudUnavailable."""
        body = query.form(action, VERSION, arguments)
        # Expired keys are discarded in `_call`, so the second attempt uses new ones.
        try:
            return await self._call(body)
        except query.AwsKeysExpired:
            return await self._call(body)

    async def _call(self, body: bytes) -> dict[str, Any]:
        keys = await self.credentials.keys()
        now = datetime.fromtimestamp(self.credentials.now_s(), UTC)
        headers = query.signed(keys, self.region, "ec2", self._url, _FORM, body, now)
        try:
            return query.read(await self._http.ask("POST", self._url, headers, body), "AWS EC2")
        except query.AwsKeysExpired:
            self.credentials.forget(keys)
            raise

    async def do(self, action: str, arguments: query.Arguments) -> bool:
        """Call an action on a resource, and return whether the resource existed. Raise like `call`."""
        try:
            await self.call(action, arguments)
        except query.AwsRefused as error:
            # A missing resource is no error: an earlier request, whose response was lost, may have deleted it.
            if any(word in error.code for word in NONE):
                return False
            raise
        return True

    async def every(
        self, action: str, members: str, arguments: query.Arguments | None = None, page: int = PAGE
    ) -> list[dict[str, Any]]:
        """Return all pages of a list."""
        found, token = list[dict[str, Any]](), ""
        for _ in range(PAGES_MAX):
            answer = await self.call(action, {**(arguments or {}), "MaxResults": page, "NextToken": token or None})
            # At the top level of a response, EC2 sends even an empty list. If the list is missing, the response is
            # truncated or from another server; read as an empty list, it would mean that all machines are gone.
            if members not in answer:
                raise CloudUnavailable(f"AWS EC2 returned no {members} for {action}")
            found += query.listed(answer[members])
            following = answer.get("nextToken") or ""
            if not following:
                return found
            # A server that ignores the token sends the same page forever.
            if following == token:
                break
            token = following
        raise CloudUnavailable(f"AWS EC2 keeps sending more pages for {action}")

    async def every_instance(self, arguments: query.Arguments | None = None) -> list[dict[str, Any]]:
        """Return all instances, including those terminated within the last hour."""
        found = await self.every("DescribeInstances", "reservationSet", arguments)
        return [one for reservation in found for one in query.listed(reservation.get("instancesSet"))]

    async def _ours(self) -> dict[str, dict[str, Any]]:
        return {one["instanceId"]: one for one in await self.every_instance(_OURS)}

    async def _our_volumes(self) -> dict[str, dict[str, Any]]:
        return {one["volumeId"]: one for one in await self.every("DescribeVolumes", "volumeSet", _OURS)}

    async def sizes(self, types: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Return virtual cores and memory of instance types. Raise AwsRefused for an unknown one."""
        missing = [one for one in dict.fromkeys(types) if one not in self._types]
        # EC2 accepts at most 100 names in one request.
        for start in range(0, len(missing), 100):
            answer = await self.call("DescribeInstanceTypes", {"InstanceType": missing[start : start + 100]})
            for one in query.listed(answer.get("instanceTypeSet")):
                cores, memory = one["vCpuInfo"]["defaultVCpus"], one["memoryInfo"]["sizeInMiB"]
                self._types[one["instanceType"]] = int(cores), int(memory)
        return {one: self._types[one] for one in types if one in self._types}

    async def limits(self) -> Amounts:
        """Return the account's quotas for instances; empty if the keys have no right to read quotas."""
        found, token = dict[str, float](), ""
        for _ in range(PAGES_MAX):
            arguments = {"ServiceCode": "ec2", "MaxResults": 100} | ({"NextToken": token} if token else {})
            answer = await self._quotas(arguments)
            for one in answer.get("Quotas", []):
                if one.get("QuotaCode") in COUNTED_QUOTAS and isinstance(one.get("Value"), int | float):
                    found[one["QuotaCode"]] = float(one["Value"])
            token = answer.get("NextToken") or ""
            if not token:
                return found
        raise CloudUnavailable("AWS Service Quotas keeps sending more pages")

    async def _quotas(self, arguments: query.Arguments) -> dict[str, Any]:
        body, keys = msgspec.json.encode(arguments), await self.credentials.keys()
        kind = {
            "content-type": "application/x-amz-json-1.1",
            "x-amz-target": "ServiceQuotasV20190624.ListServiceQuotas",
        }
        now = datetime.fromtimestamp(self.credentials.now_s(), UTC)
        headers = query.signed(keys, self.region, "servicequotas", self._quotas_url, kind, body, now)
        answer = await self._http.ask("POST", self._quotas_url, headers, body)
        try:
            document = msgspec.json.decode(answer.body or b"{}")
        except msgspec.DecodeError:
            document = {}
        if answer.status < 300 and isinstance(document, dict):
            return document
        code = str(document.get("__type", "") if isinstance(document, dict) else "").rpartition("#")[2]
        error = query.problem(answer.status, code, str(document), answer.headers, "AWS Service Quotas")
        if isinstance(error, query.AwsKeysExpired):
            self.credentials.forget(keys)
        # Keys may lack the right to read quotas. Then the limits are unknown, but OverQuota still reports when one is
        # reached.
        if isinstance(error, CloudUnavailable) and (code or answer.status in (429, 502, 503, 504)):
            raise error
        return {}


@dataclass(frozen=True, slots=True)
class AwsKeySource:
    """Hold the settings of a connection about keys; empty means not set."""

    access: str = ""
    secret: str = ""
    file: str = ""
    profile: str = ""
    role: str = ""
    web_identity: str = ""
    """Path of the file with the token that a role is assumed with."""

    def __repr__(self) -> str:
        return f"AwsKeySource(file={self.file!r}, profile={self.profile!r}, role={self.role!r})"


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
        """Create a source of keys. `sts` is the URL of the service that issues temporary keys."""
        self._http, self._source, self._sts, self._region = http, source, sts, region
        self._env, self.now_s = env, now_s
        self._keys: query.AwsKeys | None = None
        self._turn = asyncio.Lock()

    async def keys(self) -> query.AwsKeys:
        """Return the keys for signing requests. Raise CloudUnavailable if there are none."""
        # Only one request renews the keys for all callers, because STS limits the rate of calls.
        async with self._turn:
            if self._keys is None or self._keys.until_s - EARLY_S <= self.now_s():
                self._keys = await self._found()
            return self._keys

    def forget(self, keys: query.AwsKeys) -> None:
        """Discard the expired keys, so that the next request gets new ones."""
        # Several requests may fail with the same keys. Only the first may discard them: the others must not discard the
        # new keys.
        if self._keys == keys:
            self._keys = None

    async def _found(self) -> query.AwsKeys:
        source, env = self._source, self._env
        if source.access and source.secret:
            return await self._as_role(query.AwsKeys(source.access, source.secret))
        profile = self._profile(source.profile or env.get("AWS_PROFILE", ""))
        # A connection that names a file or a profile means that account. Keys from the environment or the machine might
        # belong to another one.
        own = bool(source.file or source.profile)
        if not own and env.get("AWS_ACCESS_KEY_ID") and env.get("AWS_SECRET_ACCESS_KEY"):
            keys = query.AwsKeys(
                env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"], env.get("AWS_SESSION_TOKEN", "")
            )
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

    def _profile(self, name: str) -> query.AwsKeys | None:
        read = configparser.RawConfigParser()
        try:
            read.read_string(text_of(self._file()))
        except (OSError, UnicodeDecodeError, configparser.Error) as error:
            if self._source.file or self._source.profile:
                # Without the error and its text: the parser quotes the line that it does not understand, which may be a
                # key.
                raise CloudUnavailable(f"{self._file()} cannot be read: {type(error).__name__}") from None
            return None
        section = name or "default"
        if not read.has_section(section):
            return None
        settings = read[section]
        access, secret = settings.get("aws_access_key_id", ""), settings.get("aws_secret_access_key", "")
        return query.AwsKeys(access, secret, settings.get("aws_session_token", "")) if access and secret else None

    async def _as_role(self, keys: query.AwsKeys) -> query.AwsKeys:
        if not self._source.role:
            return keys
        arguments = {"RoleArn": self._source.role, "RoleSessionName": "headgate"}
        body = query.form("AssumeRole", "2011-06-15", arguments)
        headers = query.signed(
            keys, self._region, "sts", self._sts, _FORM, body, datetime.fromtimestamp(self.now_s(), UTC)
        )
        return _granted(await self._http.ask("POST", self._sts, headers, body), "AssumeRole")

    async def _lent(self, token: str, role: str) -> query.AwsKeys:
        arguments = {"RoleArn": role, "RoleSessionName": "headgate", "WebIdentityToken": token}
        body = query.form("AssumeRoleWithWebIdentity", "2011-06-15", arguments)
        return _granted(await self._http.ask("POST", self._sts, _FORM, body), "AssumeRoleWithWebIdentity")

    async def _of_the_machine(self) -> query.AwsKeys:
        env = self._env
        path, url = env.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"), env.get("AWS_CONTAINER_CREDENTIALS_FULL_URI")
        if path or url:
            where = f"{CONTAINER}{path}" if path else str(url)
            parts = urlsplit(where)
            # The request contains a token, and the response keys: without TLS, they must not leave this machine or its
            # link.
            if parts.scheme != "https" and parts.hostname not in NEAR:
                raise CloudUnavailable("AWS_CONTAINER_CREDENTIALS_FULL_URI names another machine without TLS")
            file = env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
            token = await asyncio.to_thread(_token, file) if file else env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")
            answer = await self._http.ask("GET", where, {"authorization": token} if token else {}, max_s=MACHINE_MAX_S)
            return _of(answer, where)
        return await self._of_an_instance(env.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", MACHINE).rstrip("/"))

    async def _of_an_instance(self, at: str) -> query.AwsKeys:
        # Version 2 of the metadata service, which many machines require, begins with a PUT: an attacker can rarely make
        # a proxy send one.
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
        # The role becomes part of a path, so only the characters of AWS role names are accepted.
        if token.status >= 300 or roles.status >= 300 or not role or not re.fullmatch(r"[\w+=,.@-]+", role[0]):
            raise CloudUnavailable("no keys for AWS: this machine has no role")
        return _of(await self._http.ask("GET", place + role[0], headers, max_s=MACHINE_MAX_S), place)


def _token(file: str) -> str:
    try:
        return text_of(Path(file)).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CloudUnavailable(f"{file} cannot be read: {type(error).__name__}") from None


def _granted(answer: CloudResponse, call: str) -> query.AwsKeys:
    try:
        lent = query.read(answer, "AWS STS")[f"{call}Result"]["Credentials"]
        return query.AwsKeys(
            lent["AccessKeyId"], lent["SecretAccessKey"], lent["SessionToken"], _time(lent["Expiration"])
        )
    except (query.AwsRefused, OverQuota) as error:
        raise CloudUnavailable(str(error)) from error
    except (KeyError, TypeError, ValueError):
        # Without the response, which may contain keys.
        raise CloudUnavailable("AWS STS returned no usable keys") from None


def _of(answer: CloudResponse, where: str) -> query.AwsKeys:
    where = urlsplit(where).hostname or ""  # the rest of a container's address is a secret
    if answer.status >= 300:
        raise CloudUnavailable(f"{where} returned status {answer.status} to a request for keys")
    try:
        lent = msgspec.json.decode(answer.body, type=_Machine)
        return query.AwsKeys(lent.AccessKeyId, lent.SecretAccessKey, lent.Token, _time(lent.Expiration))
    except (msgspec.DecodeError, ValueError):
        raise CloudUnavailable(f"{where} returned no usable keys") from None


def _time(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() if text else float("inf")
