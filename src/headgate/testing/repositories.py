"""Make real repositories, and propose changes to them with git, as a person would."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
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


class Repositories:
    """Keep bare repositories under `root`/hub, and one clone of each to work in."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.hub = root / "hub"
        self.hub.mkdir(parents=True, exist_ok=True)
        self._notes = dict[tuple[str, str], tuple[list[bytes], str]]()
        """Repository and commit -> the contents of the files that held the ref of its notes, and the note."""

    def create(self, name: str, files: Mapping[str, str], branch: str = "master") -> None:
        bare = self.hub / name
        empty_repository(bare, branch)
        work = self.work(name)
        pygit2.init_repository(work, initial_head=branch).remotes.create("origin", str(bare))
        self.write(name, files)
        run_git("commit", "-q", "-m", "Begin", at=work)
        run_git("push", "-q", "origin", branch, at=work)

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
        run_git("add", "-A", at=self.work(name))

    def propose(
        self, name: str, topic: str, files: Mapping[str, str], message: str = "", branch: str = "master"
    ) -> str:
        """Return a change on the current head of the branch, pushed to refs/for; its commit."""
        work = self.work(name)
        run_git("fetch", "-q", "--no-tags", "origin", at=work)
        run_git("checkout", "-q", "--detach", f"origin/{branch}", at=work)
        self.write(name, files)
        run_git("commit", "-q", "--allow-empty", "-m", message or topic, at=work)
        run_git("push", "-q", "-f", "origin", f"HEAD:refs/for/{branch}/{topic}", at=work)
        return (work / ".git/HEAD").read_text().strip()

    def approve(self, name: str, topic: str, branch: str = "master") -> None:
        commit = self.ref(name, f"refs/for/{branch}/{topic}")
        run_git("push", "-q", "-f", "origin", f"{commit}:refs/approved/{branch}/{topic}", at=self.work(name))

    def abandon(self, name: str, topic: str, branch: str = "master") -> None:
        run_git("push", "-q", "origin", f":refs/for/{branch}/{topic}", at=self.work(name))

    def head(self, name: str, branch: str = "master") -> str:
        return self.ref(name, f"refs/heads/{branch}")

    def ref(self, name: str, ref: str) -> str:
        """Return the commit of a ref of the bare repository, without a process, because tests poll it.
        Raise KeyError if there is no such ref."""
        return str(pygit2.Repository(self.hub / name).references[ref].target)

    def note(self, name: str, commit: str) -> str:
        """Return the note of a commit; empty if there is none. Git runs only if the notes have moved, because tests
        that wait for a note poll it."""
        bare = self.hub / name
        # git may pack refs, and the file of the ref is then gone.
        files = [bare / "refs/notes/headgate", bare / "packed-refs"]
        now = [file.read_bytes() if file.exists() else b"" for file in files]
        before, found = self._notes.get((name, commit), ([], ""))
        if now != before:
            try:
                found = run_git("notes", "--ref=headgate", "show", commit, at=bare)
            except RuntimeError:
                found = ""
            self._notes[name, commit] = now, found
        return found

    def show(self, name: str, path: str, branch: str = "master") -> str:
        return run_git("show", f"{branch}:{path}", at=self.hub / name)
