"""The few calls of EC2 that machines need, signed and read; lists are whole or they are none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from headgate.adapters.nodes.clouds.aws import query
from headgate.adapters.nodes.clouds.aws.credentials import AwsCredentials
from headgate.adapters.nodes.clouds.aws.query import Arguments, listed
from headgate.adapters.nodes.clouds.aws.quotas import COUNTED
from headgate.adapters.nodes.clouds.aws.signature import signed
from headgate.adapters.nodes.clouds.http import ANSWER_MAX_S, CloudResponse, Http, Shared
from headgate.ports.cloud import NODE_TAG, Amounts, CloudUnavailable

T = TypeVar("T")
VERSION = "2016-11-15"
PAGE = 500
PAGES_MAX = 200
GONE = "terminated"
NONE = ("NotFound", "Malformed", "InvalidAMIID.Unavailable")
"""Parts of error codes that mean that the resource does not exist, or not any more."""
_OURS: Arguments = {"Filter": [{"Name": "tag-key", "Value": [NODE_TAG]}]}


class AwsService:
    """Send signed requests to one service in one region."""

    def __init__(self, http: Http, credentials: AwsCredentials, region: str, name: str) -> None:
        """Take the `name` of the service as signatures have it."""
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
        # Keys that a role lends can expire early (a revoked session, a clock that is off); new ones are worth one more
        # request.
        for last in (False, True):
            keys = await self._credentials.keys()
            now = datetime.fromtimestamp(self._credentials.now_s(), UTC)
            every = signed(keys, self.region, self._name, url, headers, body, now, method)
            try:
                return read(await self._http.ask(method, url, every, body, max_s, max_s))
            except query.AwsKeysExpired:
                self._credentials.forget(keys)
                if last:
                    raise
        raise AssertionError("the second answer is one")


class Ec2:
    """Call EC2 in one region for one account."""

    def __init__(self, http: Http, credentials: AwsCredentials, region: str, url: str, quotas_url: str) -> None:
        self._http, self.credentials, self.region = http, credentials, region
        self._url, self._quotas_url = url, quotas_url
        self.ours = Shared(self._ours)
        """Every instance that belongs to a node, by its id."""
        self.our_volumes = Shared(self._our_volumes)
        self._types: dict[str, tuple[int, int]] = {}
        """Instance type -> virtual cores and memory in MiB, which never change."""

    async def call(self, action: str, arguments: Arguments) -> dict[str, Any]:
        """Raise AwsRefused, OverQuota, CloudUnavailable."""
        body = query.form(action, VERSION, arguments)
        try:
            return await self._call(body)
        except query.AwsKeysExpired:
            return await self._call(body)

    async def _call(self, body: bytes) -> dict[str, Any]:
        keys = await self.credentials.keys()
        kind = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
        now = datetime.fromtimestamp(self.credentials.now_s(), UTC)
        headers = signed(keys, self.region, "ec2", self._url, kind, body, now)
        try:
            return query.read(await self._http.ask("POST", self._url, headers, body), "AWS EC2")
        except query.AwsKeysExpired:
            self.credentials.forget(keys)
            raise

    async def do(self, action: str, arguments: Arguments) -> bool:
        """Return whether the resource existed. Raise as `call` does."""
        try:
            await self.call(action, arguments)
        except query.AwsRefused as error:
            # A resource that is gone is deleted: an earlier request may have done it, whose answer was lost.
            if any(word in error.code for word in NONE):
                return False
            raise
        return True

    async def every(
        self, action: str, members: str, arguments: Arguments | None = None, page: int = PAGE
    ) -> list[dict[str, Any]]:
        """Return all pages of a list."""
        found, token = list[dict[str, Any]](), ""
        for _ in range(PAGES_MAX):
            answer = await self.call(action, {**(arguments or {}), "MaxResults": page, "NextToken": token or None})
            # At the top of an answer, EC2 sends even an empty list. A missing one means a truncated or foreign answer;
            # read as an empty list, it would say that all machines are gone.
            if members not in answer:
                raise CloudUnavailable(f"AWS EC2 answers {action} without {members}")
            found += listed(answer[members])
            following = answer.get("nextToken") or ""
            if not following:
                return found
            # A server that ignores the token would send its first page for ever.
            if following == token:
                break
            token = following
        raise CloudUnavailable(f"AWS EC2 does not come to an end with {action}")

    async def every_instance(self, arguments: Arguments | None = None) -> list[dict[str, Any]]:
        """Return all instances, including those terminated within the last hour."""
        found = await self.every("DescribeInstances", "reservationSet", arguments)
        return [one for reservation in found for one in listed(reservation.get("instancesSet"))]

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
            for one in listed(answer.get("instanceTypeSet")):
                cores, memory = one["vCpuInfo"]["defaultVCpus"], one["memoryInfo"]["sizeInMiB"]
                self._types[one["instanceType"]] = int(cores), int(memory)
        return {one: self._types[one] for one in types if one in self._types}

    async def limits(self) -> Amounts:
        """Return the account's quotas that apply to instances; none if AWS does not allow the request."""
        found, token = dict[str, float](), ""
        for _ in range(PAGES_MAX):
            arguments = {"ServiceCode": "ec2", "MaxResults": 100} | ({"NextToken": token} if token else {})
            answer = await self._quotas(arguments)
            for one in answer.get("Quotas", []):
                if one.get("QuotaCode") in COUNTED and isinstance(one.get("Value"), int | float):
                    found[one["QuotaCode"]] = float(one["Value"])
            token = answer.get("NextToken") or ""
            if not token:
                return found
        raise CloudUnavailable("AWS Service Quotas does not come to an end")

    async def _quotas(self, arguments: Arguments) -> dict[str, Any]:
        body, keys = msgspec.json.encode(arguments), await self.credentials.keys()
        kind = {
            "content-type": "application/x-amz-json-1.1",
            "x-amz-target": "ServiceQuotasV20190624.ListServiceQuotas",
        }
        now = datetime.fromtimestamp(self.credentials.now_s(), UTC)
        headers = signed(keys, self.region, "servicequotas", self._quotas_url, kind, body, now)
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
        # Keys may lack the right to read quotas. Then no limits are known, and OverQuota still tells when one is
        # reached.
        if isinstance(error, CloudUnavailable) and (code or answer.status in (429, 502, 503, 504)):
            raise error
        return {}
