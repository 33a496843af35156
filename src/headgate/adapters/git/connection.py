"""Locate the repositories of a connection, and accept pokes: webhooks that name a repository with a new push."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from headgate.base.ids import derived
from headgate.config.operator.model import TenantProject
from headgate.ports.forge import Hint, Ignored, Misdelivered

POLL_MIN_S = 0.1
TALKS_MAX = 32
_SCP = re.compile(r"^(?:[^/@]+@)?(\[[^]]+\]|[^/:]+):")
"""`user@host:path`, as ssh accepts it."""
POKE_MAX_BYTES = 10_000
SKEW_MAX_S = 300
"""Largest difference between the server's clock and ours; an older poke is treated as a replay."""
BLOCK_BYTES = 64
"""Block size of SHA-256, for HMAC."""

Access = Callable[[str], Awaitable[Mapping[str, str]]]
"""Project -> git settings for one command, such as `http.<url>.extraHeader` or `core.sshCommand`; raises
RemoteError."""


class GitConnection:
    """Locate the repositories of a connection. `baseurl` is a directory, a URL (file, ssh, https, …) or
    `user@host:path`, followed by the project's path."""

    def __init__(
        self,
        name: str,
        baseurl: str,
        canonical_hostname: str = "",
        *,
        poll_interval_s: float = 30.0,
        access: Access | None = None,
        forget: Callable[[str], None] | None = None,
        suffix: str = "",
    ) -> None:
        """Make a connection. `access` returns the settings for access to a project's server; by default, git uses the
        settings of this machine's user. `forget` discards rejected credentials. `suffix` follows the name of a
        project."""
        self.name, self.access, self.forget, self._suffix = name, access, forget, suffix
        path = unquote(urlsplit(baseurl).path) if baseurl.startswith("file://") else baseurl
        # `host:/` is the root of that server; without the slash, paths would be relative to the account's home
        # directory.
        self.baseurl = path if path.endswith(":/") else path.rstrip("/")
        self.poll_interval_s = max(POLL_MIN_S, poll_interval_s)
        """Interval between two polls of a remote repository; local repositories are watched."""
        self.canonical_hostname = canonical_hostname or self._host() or name
        self.talks = asyncio.Semaphore(TALKS_MAX)
        """Limits the concurrent connections to its servers, so that a hanging server blocks nothing else."""
        self._git_dirs: dict[str, Path] = {}
        """Project -> the place where its local repository was last found."""

    @property
    def local(self) -> bool:
        return self.baseurl.startswith("/")

    def _host(self) -> str:
        if "://" in self.baseurl:
            return urlsplit(self.baseurl).hostname or ""
        found = _SCP.match(self.baseurl)
        return found[1].strip("[]") if found else ""

    def url(self, project: str) -> str:
        """Return the URL of a project by canonical name; a local repository may have the suffix `.git`."""
        found = self.git_dir(project)
        if found is not None:
            return str(found.parent if found.name == ".git" else found)
        return self._url(project)

    def _url(self, project: str) -> str:
        short = project.removeprefix(f"{self.canonical_hostname}/")
        return self.baseurl + ("" if self.baseurl.endswith((":", ":/")) else "/") + short + self._suffix

    def git_dir(self, project: str) -> Path | None:
        """Return the path of an existing local repository."""
        if not self.local:
            return None
        known = self._git_dirs.get(project)
        if known is not None and (known / "HEAD").exists():
            return known
        path = Path(self._url(project))
        places = (path / ".git", path, path.with_name(f"{path.name}.git"))
        found = next((place for place in places if (place / "HEAD").exists()), None)
        if found is not None:
            self._git_dirs[project] = found
        return found


class _Poke(msgspec.Struct, frozen=True):
    repository: str
    """Name of the project, as gitolite knows it, or path of the repository on its server."""
    at: int
    """Time in seconds since the epoch."""
    id: str = ""


_DECODER = msgspec.json.Decoder(_Poke)


class Poked:
    """Accept pokes for one connection of plain git; see `ports.forge.Hears`. A poke is signed with the secret of its
    connection, which has no other use. It is only a hint: the named repository is polled now instead of later."""

    def __init__(
        self, name: str, secret: str, projects: Callable[[], Iterable[TenantProject]], now_ms: Callable[[], int]
    ) -> None:
        """Make a listener; `projects` returns the current projects of all tenants."""
        self._name, self._secret, self._projects, self._now_ms = name, secret.encode(), projects, now_ms

    def webhook(self, headers: Mapping[str, str], body: bytes) -> Hint | Ignored:
        """Verify a delivery and return its hint; see `ports.forge.Hears`."""
        if len(body) > POKE_MAX_BYTES:
            raise Misdelivered(f"a poke has at most {POKE_MAX_BYTES} bytes", 413)
        signature = headers.get("x-hub-signature-256", "")
        wanted = "sha256=" + hmac.new(self._secret, body, hashlib.sha256).hexdigest()
        # Compare in constant time, and before parsing the body: only the server's own hook may reach the decoder.
        if not hmac.compare_digest(signature.encode("utf-8", "replace"), wanted.encode()):
            raise Misdelivered(
                f"the poke is not signed with the webhook_token of [connection {self._name}]; "
                f"`headgate hook poke {self._name}` prints a hook that has it"
            )
        try:
            poke = _DECODER.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Misdelivered(f"the poke has an invalid form: {error}", 400) from error
        late_s = self._now_ms() // 1000 - poke.at
        if abs(late_s) > SKEW_MAX_S:
            how = f"{late_s} s ago" if late_s > 0 else f"{-late_s} s from now"
            raise Misdelivered(f"the poke was signed {how}, by the clock here; set the clock of the git server")
        project = self._named(poke.repository)
        if not project:
            return Ignored(f"{poke.repository[:500]!r} does not end with the name of a project of {self._name}")
        # The id comes from the signature, so a poke that is delivered twice becomes the same hint.
        return Hint(derived("poke", signature), project)

    def _named(self, repository: str) -> str:
        """Return the canonical name of the project with the longest name that the path ends with; empty if there is
        none.
        """
        path, found = "/" + plain(repository), ("", "")
        for project in self._projects():
            # Because of the slash, `tools` does not match the end of `/srv/git/my-tools`.
            name = "/" + plain(project.project.partition("/")[2])
            if project.connection == self._name and path.endswith(name) and len(name) > len(found[0]):
                found = name, project.project
        return found[1]


def plain(path: str) -> str:
    """Return the path of a repository, or its name, without the parts that git allows to omit."""
    return path.strip("/").removesuffix("/.git").removesuffix(".git")


def pads(secret: str) -> tuple[str, str]:
    """Return the two key blocks with which the digests of HMAC begin, in the notation of `printf %b`, so that a shell
    can sign with `printf` and `sha256sum`."""
    key = secret.encode()
    block = (hashlib.sha256(key).digest() if len(key) > BLOCK_BYTES else key).ljust(BLOCK_BYTES, b"\0")
    inner, outer = ("".join(f"\\0{byte ^ pad:03o}" for byte in block) for pad in (0x36, 0x5C))
    return inner, outer


def comparable(url: str, *, at: Path = Path()) -> str:
    """Return the address of a repository in a form that can be compared with the addresses of others. A relative path
    starts at the directory `at`, as in the remotes of a work tree."""
    path = Path(url.removeprefix("file://"))
    if url.startswith("~"):
        path = path.expanduser()
    bare = str((at / path).resolve()) if path.is_absolute() or url.startswith(".") else url.rstrip("/")
    return bare.removesuffix("/.git").removesuffix(".git")
