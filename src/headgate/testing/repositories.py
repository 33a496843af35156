"""Make real repositories, and propose changes to them with git, as a person would."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pygit2

_ENVIRONMENT = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
}

_NOTES = "refs/notes/headgate"


def run_git(*args: str, at: Path) -> str:
    """Run git and return its standard output. Raise CalledProcessError with git's message."""
    # A test that runs within a git hook would inherit GIT_DIR, and write to the wrong repository.
    environment = {**{k: v for k, v in os.environ.items() if not k.startswith("GIT_")}, **_ENVIRONMENT}
    done = subprocess.run(["git", "-C", str(at), *args], capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"git {' '.join(args)} in {at}: {done.stderr.strip()}")
    return done.stdout.strip()


def empty_repository(path: Path, branch: str, settings: Mapping[str, str] | None = None) -> None:
    """Make a bare repository without commits, with the directories above it; `settings` go into its configuration."""
    repository = pygit2.init_repository(path, bare=True, initial_head=branch)
    for key, value in (settings or {}).items():
        repository.config[key] = value


def _copy(found: pygit2.Object, target: pygit2.Repository) -> None:
    """Copy an object and what it refers to, except parents and submodules, unless the target has it."""
    if found.id in target:
        return
    parts = [found.tree] if isinstance(found, pygit2.Commit) else found if isinstance(found, pygit2.Tree) else ()
    for part in parts:
        if part.type != pygit2.enums.ObjectType.COMMIT:
            _copy(part, target)
    target.write(found.type, found.read_raw())


class Repositories:
    """Keep bare repositories under `root`/hub, and one clone of each to work in.

    Most of it is done by libgit2: tests make thousands of proposals, and each push with git starts nine processes. A
    repository with hooks is pushed to with git, which runs them.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.hub = root / "hub"
        self.hub.mkdir(parents=True, exist_ok=True)
        self._notes: dict[tuple[str, str], tuple[str, str]] = {}
        """Repository and commit -> the state of the notes when its note was read, and the note."""

    def create(self, name: str, files: Mapping[str, str], branch: str = "master") -> None:
        bare = self.hub / name
        # Git would look for garbage after each push, with two more processes.
        empty_repository(bare, branch, {"receive.autogc": "false"})
        pygit2.init_repository(self.work(name), initial_head=branch).remotes.create("origin", str(bare))
        self.write(name, files)
        commit = self._commit(name, "Begin", [])
        work = pygit2.Repository(self.work(name))
        for ref in (f"refs/heads/{branch}", f"refs/remotes/origin/{branch}"):
            work.references.create(ref, commit)
        self._push(name, commit, f"refs/heads/{branch}")

    def work(self, name: str) -> Path:
        return self.root / "work" / name

    def write(self, name: str, files: Mapping[str, str]) -> None:
        """Write files into the clone and stage them. A file that begins with `#!` is made executable."""
        for path, text in files.items():
            file = self.work(name) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            if text.startswith("#!"):
                file.chmod(0o755)
        index = pygit2.Repository(self.work(name)).index
        index.add_all()
        index.write()

    def propose(
        self, name: str, topic: str, files: Mapping[str, str], message: str = "", branch: str = "master"
    ) -> str:
        """Return a change on the current head of the branch, pushed to refs/for; its commit."""
        work, head = pygit2.Repository(self.work(name)), self.head(name, branch)
        if head not in work:
            run_git("fetch", "-q", "--no-tags", "origin", at=self.work(name))
        work.references.create(f"refs/remotes/origin/{branch}", head, force=True)
        work.checkout(f"refs/remotes/origin/{branch}")
        self.write(name, files)
        commit = self._commit(name, message or topic, [work.head.target])
        work.set_head(commit)
        self._push(name, commit, f"refs/for/{branch}/{topic}")
        return str(commit)

    def approve(self, name: str, topic: str, branch: str = "master") -> None:
        commit = self.ref(name, f"refs/for/{branch}/{topic}")
        self._push(name, commit, f"refs/approved/{branch}/{topic}")

    def abandon(self, name: str, topic: str, branch: str = "master") -> None:
        self._push(name, "", f"refs/for/{branch}/{topic}")

    def _commit(self, name: str, message: str, parents: Sequence[pygit2.Oid | str]) -> pygit2.Oid:
        """Return a commit of what is staged, with the message as git cleans it up."""
        work = pygit2.Repository(self.work(name))
        ada = pygit2.Signature("Ada", "ada@example.org")
        lines = "\n".join(line.rstrip() for line in message.split("\n"))
        cleaned = re.sub(r"\n{3,}", "\n\n", lines).strip("\n") + "\n"
        return work.create_commit(None, ada, ada, cleaned, work.index.write_tree(), list(parents))

    def _push(self, name: str, commit: pygit2.Oid | str, ref: str) -> None:
        """Make the ref of the bare repository name the commit; an empty commit deletes it."""
        bare = pygit2.Repository(self.hub / name)
        if any(file.suffix != ".sample" for file in (self.hub / name / "hooks").glob("*")):
            run_git("push", "-q", "-f", "origin", f"{commit}:{ref}", at=self.work(name))
        elif not commit:
            bare.references.delete(ref)
        else:
            # libgit2's push reads every ref of the bare repository, and fails for objects that only git accepts; so
            # does its fetch.
            _copy(pygit2.Repository(self.work(name))[commit], bare)
            bare.references.create(ref, commit, force=True)

    def head(self, name: str, branch: str = "master") -> str:
        return self.ref(name, f"refs/heads/{branch}")

    def ref(self, name: str, ref: str) -> str:
        """Return the commit of a ref of the bare repository. Raise KeyError if there is no such ref."""
        return str(pygit2.Repository(self.hub / name).references[ref].target)

    def note(self, name: str, commit: str) -> str:
        """Return the note of a commit; empty if there is none."""
        # Tests wait for notes by asking for them repeatedly, and opening a repository takes half a millisecond.
        ref = self.hub / name / _NOTES
        state = ref.read_text() if ref.exists() else ""
        known, text = self._notes.get((name, commit), ("", ""))
        if not state or known != state:
            try:
                text = pygit2.Repository(self.hub / name).lookup_note(commit, _NOTES).message.strip()
            except KeyError:
                text = ""
            self._notes[name, commit] = state, text
        return text

    def show(self, name: str, path: str, branch: str = "master") -> str:
        """Return the text of a file of the branch. Raise KeyError if there is no such file."""
        found = pygit2.Repository(self.hub / name).revparse_single(f"{branch}:{path}")
        assert isinstance(found, pygit2.Blob), f"{path} is a directory"
        return found.data.decode().strip()
