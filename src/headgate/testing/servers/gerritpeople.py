"""Act as people who use a Gerrit in tests: they propose changes and vote, through its REST API and git."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import subprocess
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

from headgate.testing.clock import DEADLINE_S

ADMIN, HEADGATE = "admin", "headgate"
NAMES = ("alice", "bob")
PASSWORD = "secret"
"""Password of all accounts."""
CALL_MAX_S = DEADLINE_S
_USERS, _SERVICES = "Registered Users", "Service Users"


@dataclass(frozen=True, slots=True)
class ReviewingChange:
    """Describe a change as it was after a push."""

    number: int
    change_id: str
    commit: str
    project: str


class ReviewingRefused(Exception):
    """Report that the server rejects an action."""


class ReviewingPerson:
    """Act as one account, which authenticates with its password."""

    def __init__(self, url: str, name: str, password: str = PASSWORD) -> None:
        self.url, self.name, self._password = url, name, password

    def asks(self, method: str, path: str, body: object = None) -> Any:  # JSON
        """Return the server's answer; raise ReviewingRefused, OSError."""
        credentials = b64encode(f"{self.name}:{self._password}".encode()).decode()
        headers = {"Authorization": f"Basic {credentials}"}
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            headers["Content-Type"] = "application/json"
        request = Request(f"{self.url}/a/{path}", data=data, headers=headers, method=method)  # noqa: S310
        try:
            with urlopen(request, timeout=CALL_MAX_S) as answer:  # noqa: S310
                # Gerrit puts this before its JSON, so that no page of others can load it as a script.
                text = answer.read().decode().removeprefix(")]}'").strip()
        except HTTPError as error:
            raise ReviewingRefused(
                f"{method} {path}: {error.code}: {error.read(500).decode(errors='replace')}"
            ) from error
        return json.loads(text) if text[:1] in ("{", "[", '"') else text

    def finds(self, path: str) -> bool:
        try:
            self.asks("GET", path)
        except (ReviewingRefused, OSError):
            return False
        return True

    def looks(self, number: int, *options: str) -> Any:  # JSON
        """Return the server's description of a change."""
        return self.asks("GET", f"changes/{number}?{'&'.join(f'o={option}' for option in options)}")

    def votes(self, number: int, message: str = "", **labels: int) -> None:
        """Post a comment and votes on the current patch set; names of labels are written with `_` for `-`."""
        votes = {name.replace("_", "-"): value for name, value in labels.items()}
        self.asks("POST", f"changes/{number}/revisions/current/review", {"labels": votes, "message": message})

    def abandons(self, number: int) -> None:
        self.asks("POST", f"changes/{number}/abandon", {})

    def restores(self, number: int) -> None:
        self.asks("POST", f"changes/{number}/restore", {})

    def unfinished(self, number: int) -> None:
        """Mark the change as work in progress."""
        self.asks("POST", f"changes/{number}/wip", {})

    def ready(self, number: int) -> None:
        self.asks("POST", f"changes/{number}/ready", {})

    def tags(self, number: int, *hashtags: str) -> None:
        self.asks("POST", f"changes/{number}/hashtags", {"add": list(hashtags)})

    def remarks(self, number: int, path: str, text: str, *, unresolved: bool = True) -> None:
        """Leave a comment on a file."""
        comments = {path: [{"line": 1, "message": text, "unresolved": unresolved}]}
        self.asks("POST", f"changes/{number}/revisions/current/review", {"comments": comments})

    def submits(self, number: int) -> None:
        self.asks("POST", f"changes/{number}/submit", {})


class Clone:
    """Work in a repository, and push from it."""

    def __init__(self, person: ReviewingPerson, project: str, directory: Path) -> None:
        self.person, self.project, self.at = person, project, directory
        at = urlsplit(person.url)
        self._remote = f"{at.scheme}://{person.name}:{PASSWORD}@{at.netloc}/a/{quote(project)}"
        directory.mkdir(parents=True)
        self._git("init", "-q")
        self._numbers = itertools.count()

    def proposes(
        self, files: Mapping[str, str], message: str = "", *, on: str = "", branch: str = "master",
        options: Sequence[str] = (), change_id: str = "",
    ) -> ReviewingChange:  # fmt: skip
        """Push a change to the branch, or `on` a commit.  `options`: of the push, as `topic=T`; `change_id`: of the
        change that it is a new patch set of."""
        self._write(files, on or self.head(branch))
        change_id = change_id or f"I{secrets.token_hex(20)}"
        text = message or f"Change {', '.join(files)}"
        self._git("commit", "-q", "--allow-empty", "-m", _with_id(text, change_id))
        return self._proposed(change_id, branch, options)

    def merges(self, commit: str, branch: str = "master") -> ReviewingChange:
        """Push a change that merges a commit into the branch."""
        change_id = f"I{secrets.token_hex(20)}"
        self._git("checkout", "-q", "--detach", self.head(branch))
        self._git("merge", "-q", "--no-ff", "-m", _with_id("Merge", change_id), commit)
        return self._proposed(change_id, branch, ())

    def _proposed(self, change_id: str, branch: str, options: Sequence[str]) -> ReviewingChange:
        commit = self._git("rev-parse", "HEAD")
        suffix = f"%{','.join(options)}" if options else ""
        self._git("push", "-q", self._remote, f"HEAD:refs/for/{branch}{suffix}")
        found = self.person.asks("GET", f"changes/?q=change:{change_id}+project:{quote(self.project, safe='')}")
        return ReviewingChange(found[0]["_number"], change_id, commit, self.project)

    def pushes(self, files: Mapping[str, str], branch: str = "master") -> str:
        """Push without review, as the administrator may; return the commit."""
        self._write(files, self.head(branch))
        self._git("commit", "-q", "-m", f"Push {next(self._numbers)}")
        self._git("push", "-q", self._remote, f"HEAD:refs/heads/{branch}")
        return self._git("rev-parse", "HEAD")

    def shows(self, path: str, branch: str = "master") -> str:
        """Return the content of a file at the head of a branch; empty: it does not exist."""
        head = self.head(branch)
        try:
            return self._git("show", f"{head}:{path}")
        except RuntimeError:
            return ""

    def head(self, branch: str = "master") -> str:
        self._git("fetch", "-q", self._remote, f"refs/heads/{branch}")
        return self._git("rev-parse", "FETCH_HEAD")

    def _write(self, files: Mapping[str, str], on: str) -> None:
        self._git("checkout", "-q", "--detach", on)
        for path, text in files.items():
            file = self.at / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            if text.startswith("#!"):
                file.chmod(0o755)
        self._git("add", "-A")

    def _git(self, *args: str) -> str:
        identity = {
            f"GIT_{role}_{part}": value for role in ("AUTHOR", "COMMITTER") for part, value in self._who.items()
        }
        # Tests may run inside a git hook or a rebase, whose variables would lead git to another repository.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        isolated = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0"}
        done = subprocess.run(
            ["git", "-C", str(self.at), *args],
            capture_output=True,
            text=True,
            check=False,
            env={**inherited, **isolated, **identity},
        )
        if done.returncode:
            raise RuntimeError(f"git {args[0]}: {done.stderr.strip()}")
        return done.stdout.strip()

    @property
    def _who(self) -> dict[str, str]:
        return {"NAME": self.person.name, "EMAIL": f"{self.person.name}@example.org"}


class ReviewingPeople:
    """Manage the people: `admin` administers, and `headgate` is the account of the program under test."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.admin, self.headgate, self.alice, self.bob = (ReviewingPerson(url, n) for n in (ADMIN, HEADGATE, *NAMES))

    def settle(self, key: str) -> None:
        """Make accounts, labels, rules and rights, on a server that has none.  `key`: of `headgate`, for ssh."""
        admin = self.admin
        for name in (HEADGATE, *NAMES):
            account = {"name": name.title(), "email": f"{name}@example.org", "http_password": PASSWORD}
            admin.asks("PUT", f"accounts/{name}", {**account, **({"ssh_key": key} if name == HEADGATE else {})})
        admin.asks("PUT", f"accounts/self/emails/{ADMIN}@example.org", {"no_confirmation": True})
        admin.asks("PUT", f"groups/{quote(_SERVICES)}/members/{HEADGATE}")
        values = {"-2": "Fails in the gate", "-1": "Fails", " 0": "No score", "+1": "Works", "+2": "Works in the gate"}
        admin.asks("PUT", "projects/All-Projects/labels/Verified", {"values": values, "function": "NoBlock"})
        rule = {"name": "Verified", "submittability_expression": "label:Verified=MAX AND -label:Verified=MIN"}
        admin.asks("PUT", "projects/All-Projects/submit_requirements/Verified", rule)
        ids = {name: self._group(name) for name in (_USERS, _SERVICES)}
        may = {ids[_SERVICES]: {"action": "ALLOW"}}
        heads = {
            "label-Verified": _votes("Verified", ids[_SERVICES], 2),
            "label-Code-Review": _votes("Code-Review", ids[_USERS], 2),
            "submit": {"rules": may},
            "push": {"rules": {**may, self._group("Administrators"): {"action": "ALLOW"}}},
            "abandon": {"rules": {ids[_USERS]: {"action": "ALLOW"}}},
            "editHashtags": {"rules": {ids[_USERS]: {"action": "ALLOW"}}},
            "editTopicName": {"rules": {ids[_USERS]: {"action": "ALLOW"}}},
        }
        admin.asks("POST", "projects/All-Projects/access", {"add": {"refs/heads/*": {"permissions": heads}}})

    def project(self, name: str, **options: object) -> None:
        """Make a project with one empty commit.  `options`: further options of ProjectInput."""
        self.admin.asks("PUT", f"projects/{quote(name, safe='')}", {"create_empty_commit": True, **options})

    def resolves(self, number: int) -> None:
        """Mark every comment on files of a change as done."""
        found = self.alice.asks("GET", f"changes/{number}/comments")
        replies = {
            path: [{"in_reply_to": one["id"], "message": "Done", "unresolved": False} for one in comments]
            for path, comments in found.items()
        }
        self.alice.asks("POST", f"changes/{number}/revisions/current/review", {"comments": replies})

    def branch(self, project: str, name: str) -> None:
        """Create a branch at the head of `master`."""
        where = f"projects/{quote(project, safe='')}/branches/{quote(name, safe='')}"
        self.admin.asks("PUT", where, {"revision": "master"})

    def moves(self, number: int, branch: str) -> None:
        """Move a change to another branch."""
        self.admin.asks("POST", f"changes/{number}/move", {"destination_branch": branch})

    def requires(self, project: str, name: str, expression: str) -> None:
        """Add a submit requirement to a project."""
        rule = {"name": name, "submittability_expression": expression}
        self.admin.asks("PUT", f"projects/{quote(project, safe='')}/submit_requirements/{quote(name)}", rule)

    def _group(self, name: str) -> str:
        if name == _USERS:
            return "global:Registered-Users"
        found: str = self.admin.asks("GET", f"groups/{quote(name)}")["id"]
        return found


def _votes(label: str, group: str, most: int) -> dict[str, object]:
    return {"label": label, "rules": {group: {"action": "ALLOW", "min": -most, "max": most}}}


def _with_id(text: str, change_id: str) -> str:
    """Return a message with the footer added after its existing ones."""
    last = text.rstrip().rsplit("\n\n", 1)
    # A footer belongs to the last paragraph; in one of its own, Gerrit would not see those before it.
    footed = len(last) > 1 and all(":" in line for line in last[1].splitlines())
    return f"{text.rstrip()}\n{'' if footed else chr(10)}Change-Id: {change_id}\n"
