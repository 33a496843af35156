"""Identify callers by the keys of applications, and decide what each may do with a queue."""

from __future__ import annotations

import hashlib
import hmac
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headgate.adapters.identity.tokens import Authenticator, BadToken, read
from headgate.base.errors import HeadgateError
from headgate.queue.messages.records import QueueRecord


class AccessDenied(HeadgateError):
    """Report that access is denied. `status` is 401, 403 or 404; `fields` says why."""

    def __init__(self, status: int, fields: dict[str, str]) -> None:
        super().__init__(next(iter(fields.values())))
        self.status, self.fields = status, fields


@dataclass(frozen=True, slots=True)
class QueueCaller:
    """Hold the principals that the keys of one request prove: `app:<name>`."""

    principals: frozenset[str]

    def must_be(self, app: str) -> None:
        if f"app:{app}" not in self.principals:
            raise _forbidden(app)

    def turn(self, app: str) -> str:
        """Return the name under which the caller's reads of this application's queues wait for each other: readers of
        public queues do not hold up the application itself."""
        return app if f"app:{app}" in self.principals else f"{app}\npublic"

    def must_see(self, app: str, queue: QueueRecord) -> None:
        if queue.kind != "public":
            self.must_change(app, queue)

    def must_change(self, app: str, queue: QueueRecord) -> None:
        """Require permission to change existing messages: the principals of the queue have it or, if it has none,
        its application."""
        allowed = frozenset(queue.principles.split(",")) if queue.principles else {f"app:{app}"}
        if not self.principals & allowed:
            raise _forbidden(app)


def _forbidden(app: str) -> AccessDenied:
    return AccessDenied(403, {"authorization": f"a key of application {app} is needed: Authorization: Application KEY"})


class ApplicationKeys:
    """Hold the keys of each application, the operator's token, and tokens whose claim `applications` names some."""

    def __init__(
        self,
        keys: Mapping[str, Iterable[str]],
        operator: str = "",
        tokens: Sequence[Authenticator] = (),
        until: Mapping[str, float] | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """Take the keys of applications; several keys of one application are valid at the same time. `until`: key ->
        the Unix time at which it expires."""
        self._until, self._now_s = {_hashed(key): at_s for key, at_s in (until or {}).items()}, now_s
        self.apps = frozenset(keys)
        # An empty key would let in everybody who sends a header without one.
        self._app_of = {_hashed(key): app for app, some in keys.items() for key in some if key.strip()}
        self._operator, self._tokens = operator, tokens

    def become(self, other: ApplicationKeys) -> None:
        """Replace the keys with those of `other`."""
        self._until, self._now_s, self.apps = other._until, other._now_s, other.apps
        self._app_of, self._operator, self._tokens = other._app_of, other._operator, other._tokens

    def caller(self, app: str, header: str) -> QueueCaller:
        """Return the caller. Raise AccessDenied: 404 for an unknown application, 401 for an unknown key. Without a
        header, the caller is anonymous."""
        if app not in self.apps:
            raise AccessDenied(404, {"application": f"there is no application {app!r}"})
        return QueueCaller(frozenset(self._proved(header)))

    def somebody(self, header: str) -> frozenset[str]:
        """Return the principals that are proved. Raise AccessDenied if there are none."""
        if not (found := frozenset(self._proved(header))):
            raise AccessDenied(401, {"authorization": "a key of an application, or the operator's token, is needed"})
        return found

    def _proved(self, header: str) -> Iterator[str]:
        # Several keys in one header prove several applications, for a queue that names more than one principal.
        for part in filter(None, (part.strip() for part in header.split(";"))):
            scheme, _, key = part.partition(" ")
            unknown = _hashed(key.strip()) not in self._app_of  # people enter a key where they enter tokens
            if scheme.lower() == "bearer" and unknown:
                yield from (f"app:{app}" for app in self._of_token(key.strip()))
                continue
            known = self._app_of.get(_hashed(key.strip())) if scheme.lower() in ("application", "bearer") else None
            if known is None:
                raise _unknown("this is not a key of any application: Authorization: Application KEY")
            # Distinguished from an unknown key: only somebody who has the key learns that it was once valid.
            if self._now_s() >= self._until.get(_hashed(key.strip()), math.inf):
                raise _unknown("this key has expired: ask for the key that replaces it")
            yield f"app:{known}"

    def _of_token(self, token: str) -> Collection[str]:
        # Without the first test, an empty token would be that of an operator who has set none.
        if self._operator and hmac.compare_digest(token.encode(), self._operator.encode()):
            return self.apps
        try:
            _, claims = read(token, self._tokens)
        except BadToken as error:
            raise _unknown(str(error)) from error
        named = claims.get("applications", ())
        # Claims come from outside: other types, and applications that this server does not have, count as missing.
        return self.apps & {one for one in named if isinstance(one, str)} if isinstance(named, list) else ()


def _unknown(why: str) -> AccessDenied:
    return AccessDenied(401, {"authorization": why})


def _hashed(key: str) -> bytes:
    """Return the hash of a key: looking it up takes as long for a nearly right key as for any other."""
    # A string that cannot be encoded is an unknown key, not a server error.
    return hashlib.sha256(key.encode(errors="replace")).digest()
