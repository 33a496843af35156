"""Describe accounts at forges with REST: where the forge is, and how many calls it still allows. Pure."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from headgate.base.errors import UserError
from headgate.ports.limits import NO_LIMIT, QuietUntil

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
TRUE = frozenset({"true", "yes", "on", "1"})

RESERVE = 0.1
"""Share of a budget that is reserved for calls that somebody waits for; background calls stop before they use it."""
FAIR = 0.25
"""Share of a budget that is reserved for projects that have used less than an equal share, while they may need it."""
QUIET_MIN_S, QUIET_MAX_S = 60.0, 3600.0
"""Pause after a refusal that does not say how long to wait; it doubles each time, from the first value to the
second."""
RETRY_MAX_S = 24 * 3600.0
_PRIMARY = "api rate limit exceeded"
_SECONDARY = ("secondary rate limit", "abuse detection")


class OnTheWeb:
    """Name the projects of a forge."""

    __slots__ = ()
    name: str
    web: str
    """URL of the web pages, without a slash at the end; it may have a path."""
    canonical_hostname: str

    @property
    def host(self) -> str:
        """Return the host with its port, as in URLs."""
        return urlsplit(self.web).netloc

    @property
    def root(self) -> str:
        """Return the part between the host and the project in the URL of a page."""
        return urlsplit(self.web).path

    def short(self, project: str) -> str:
        """Return the forge's name of a project, from its canonical name."""
        return project.removeprefix(f"{self.canonical_hostname}/")

    def canonical(self, short: str) -> str:
        """Return the canonical name of a project, from the forge's name."""
        return f"{self.canonical_hostname}/{short}"

    def below(self, url: str) -> str:
        """Return the path of a page of this forge; empty if the URL is invalid or leads elsewhere."""
        try:
            parts = urlsplit(url)
            # People copy URLs with and without the port, and in footers they also write the canonical name.
            hosts = {self.host, urlsplit(self.web).hostname, self.canonical_hostname}
            ours = parts.hostname in hosts or parts.netloc in hosts
        except ValueError:  # users write it: unclosed brackets, characters that normalize to a slash
            return ""
        return parts.path.removeprefix(self.root) if ours and parts.path.startswith(f"{self.root}/") else ""


def over_ssh(key: str) -> dict[str, str]:
    """Return settings of git that log in with the key at this path alone, without prompts."""
    # Without IdentitiesOnly, ssh offers the agent's keys first, and one of them may belong to another account.
    return {"core.sshCommand": f"ssh -i {shlex.quote(key)} -o IdentitiesOnly=yes -o BatchMode=yes"}


def host_of(server: str) -> str:
    """Return the host of a server, which may be given as an address."""
    return urlsplit(server if "://" in server else f"//{server}").hostname or ""


def address(option: str, url: str) -> str:
    """Return the address without a slash at its end. Raise UserError."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        raise UserError(f"{option}: {url!r} is not an address; write it as https://git.example.com") from None
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or parts.username:
        raise UserError(f"{option}: {url!r} is not an address; write it as https://git.example.com")
    if parts.scheme == "http" and host not in LOOPBACK:
        why = "http:// is allowed only for this machine, as it sends the token unencrypted"
        raise UserError(f"{option}: {why}; write https://")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


@dataclass(slots=True)
class CallBudget:
    """Count the calls of one account and kind. The forge counts the calls of all processes and reports the sum with its
    responses; `quiet` returns the limits that other processes must learn before they call."""

    limit: int = 0
    """Calls that the forge allows in one period; 0 while unknown."""
    remaining: int = 0
    reset_s: float = 0.0
    quiet_s: float = 0.0
    """Time until which no calls are made."""
    refusals: int = 0
    """Refusals in a row that do not say how long to wait."""
    had: Counter[str] = field(default_factory=Counter)
    """Project -> calls answered for it in this process since the budget was last reset."""

    def wait_s(self, now_s: float, *, urgent: bool = True, project: str = "", others: QuietUntil = NO_LIMIT) -> float:
        """Return the time to wait before a call about a project, in seconds; 0: call immediately. `others`: limits that
        other processes have learned."""
        until_s = max(self.quiet_s, others.all_s, 0 if urgent else others.spare_s)
        if until_s > now_s:
            return until_s - now_s
        if self.limit and self.reset_s > now_s:
            reserve = 0 if urgent else int(self.limit * RESERVE)
            if self.remaining <= max(reserve, self._reserved_from(project)):
                # Add a second, since the forge reports its times in whole seconds.
                return self.reset_s - now_s + 1
        return 0.0

    def _reserved_from(self, project: str) -> int:
        """Return the part of the budget that a project may not use because it has used more than its equal part."""
        part = self.limit / max(1, len(self.had))
        if not project or self.had[project] <= part:
            return 0
        wanted = sum(max(0.0, part - had) for other, had in self.had.items() if other != project)
        return int(min(self.limit * FAIR, wanted))

    def counted(self, project: str) -> None:
        """Count an answered call about a project."""
        if project:
            self.had[project] += 1

    def quiet(self, now_s: float) -> QuietUntil:
        """Return the limits that other processes need to know."""
        spent = self.limit > 0 and self.reset_s > now_s
        all_s = max(self.quiet_s, self.reset_s + 1 if spent and not self.remaining else 0)
        scarce = spent and self.remaining <= int(self.limit * RESERVE)
        return QuietUntil(all_s if all_s > now_s else 0.0, self.reset_s + 1 if scarce else 0.0)

    def learn(self, headers: Mapping[str, str], now_s: float) -> None:
        """Learn from a response. Responses may overtake one another: within one period, the lowest remainder is
        right."""
        limit, remaining = _number(headers, "x-ratelimit-limit"), _number(headers, "x-ratelimit-remaining")
        reset_s = _number(headers, "x-ratelimit-reset")
        # A reset that lies days ahead comes from a wrong clock or a proxy; believing it would silence the connection.
        if limit is None or remaining is None or reset_s is None or reset_s > now_s + RETRY_MAX_S:
            return
        same = self.limit == limit and abs(self.reset_s - reset_s) < 2 and self.reset_s > now_s
        self.remaining = min(self.remaining, remaining) if same else remaining
        if not same:
            self.had.clear()
        self.limit, self.reset_s = limit, reset_s

    def answered(self) -> None:
        """Record that the forge accepted a call."""
        self.refusals = 0

    def refused(self, status: int, headers: Mapping[str, str], message: str, now_s: float) -> float | None:
        """Return the pause after a rate-limit refusal, in seconds, and remember it; None if the refusal has another
        reason.
        """
        text, after_s = message.lower(), _number(headers, "retry-after")
        spent = _number(headers, "x-ratelimit-remaining") == 0
        limited = _PRIMARY in text or any(one in text for one in _SECONDARY)
        # GitHub returns 403 for limits and for lacking permissions; only the text or Retry-After tells them apart.
        denied = status == 403 and (limited or after_s is not None)
        if status != 429 and not denied and not (status < 300 and limited):
            return None
        if after_s is not None:
            wait_s = float(after_s) + 1
        elif spent and (reset_s := _number(headers, "x-ratelimit-reset")) is not None and reset_s > now_s:
            wait_s = reset_s - now_s + 1
        else:
            wait_s = min(QUIET_MIN_S * 2**self.refusals, QUIET_MAX_S)
            self.refusals = min(self.refusals + 1, 10)
        wait_s = min(wait_s, RETRY_MAX_S)
        self.quiet_s = max(self.quiet_s, now_s + wait_s)
        return wait_s


def _number(headers: Mapping[str, str], name: str) -> int | None:
    value = headers.get(name, "").strip()
    # `isdecimal` alone admits other scripts' digits; the length keeps `int` cheap.
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 16 else None
