"""The repositories of a day, and what people push there.

Refs are written as a git server writes them at the end of a push, without a process for each push: what is measured is
what Headgate does.
"""

from __future__ import annotations

from pathlib import Path

import pygit2

from headgate.testing.day.configuration import CONFIG, central, own
from headgate.testing.day.plan import DayPlan, DayProject, DayProposal

_ME = pygit2.Signature("Ada", "ada@example.org", 1_700_000_000, 0)
PROJECT_FILE = ".zuul.d/project.yaml"
_HEAD = "refs/heads/master"
FILE = pygit2.enums.FileMode.BLOB


class DayHub:
    def __init__(self, root: Path, plan: DayPlan) -> None:
        """Make all repositories below `root`, bare; no daily jobs run until `schedule` is called."""
        self.root, self._plan = root, plan
        self._open: dict[str, pygit2.Repository] = {}
        self._needed = plan.needed
        self._begin(CONFIG, {"zuul.yaml": central()}, ("master",))
        for project in plan.projects:
            branches = ("master", "stable/2026") if project.stable else ("master",)
            self._begin(project.name, {PROJECT_FILE: own(project)}, branches)

    def schedule(self, periodic: str) -> None:
        """Push to the configuration when the daily jobs run; `periodic` is a line of cron."""
        repository = pygit2.Repository(str(self.root / CONFIG))
        commit = _commit(
            repository, {"zuul.yaml": central(periodic)}, [repository.references[_HEAD].peel(pygit2.Commit).id]
        )
        repository.references.create(_HEAD, commit, force=True)

    def propose(self, proposal: DayProposal, patchset: int = 1) -> None:
        """Push it, on the head that its branch has."""
        repository = self._of(proposal.project)
        head = repository.references[f"refs/heads/{proposal.branch}"].target
        path, text = self._work(proposal, patchset)
        index = pygit2.Index()
        index.read_tree(repository[head].peel(pygit2.Tree))
        index.add(pygit2.IndexEntry(path, repository.create_blob(text.encode()), FILE))
        message = proposal.message(patchset, self._needed.get(proposal.number))
        commit = repository.create_commit(None, _ME, _ME, message, index.write_tree(repository), [head])
        repository.references.create(self._ref("for", proposal), commit, force=True)

    def approve(self, proposal: DayProposal) -> None:
        repository = self._of(proposal.project)
        commit = repository.references[self._ref("for", proposal)].target
        repository.references.create(self._ref("approved", proposal), commit, force=True)

    def recheck(self, proposal: DayProposal) -> None:
        """Ask for another test, unless the change has landed meanwhile."""
        repository = self._of(proposal.project)
        proposed = repository.references.get(self._ref("for", proposal))
        if proposed is not None:
            repository.references.create(self._ref("recheck", proposal), proposed.target, force=True)

    def abandon(self, proposal: DayProposal) -> None:
        self._of(proposal.project).references.delete(self._ref("for", proposal))

    def tag(self, project: DayProject, name: str) -> None:
        repository = self._of(project)
        repository.references.create(f"refs/tags/{name}", repository.references["refs/heads/master"].target)

    def has(self, proposal: DayProposal) -> bool:
        """Return whether the branch contains the change."""
        repository = self._of(proposal.project)
        head = repository.references[f"refs/heads/{proposal.branch}"].peel(pygit2.Commit)
        return self._work(proposal, 1)[0] in head.tree

    @staticmethod
    def _work(proposal: DayProposal, patchset: int) -> tuple[str, str]:
        """Return the file of a change, and its content."""
        if proposal.kind == "jobs":
            return f".zuul.d/t{proposal.number}.yaml", _job_of(proposal, patchset)
        return f"{'doc' if proposal.kind == 'docs' else 'src'}/{proposal.topic}", f"{proposal.topic} {patchset}\n"

    @staticmethod
    def _ref(kind: str, proposal: DayProposal) -> str:
        return f"refs/{kind}/{proposal.branch}/{proposal.topic}"

    def _of(self, project: DayProject) -> pygit2.Repository:
        """Return its repository; objects and refs that others write meanwhile are found all the same."""
        found = self._open.get(project.name)
        if found is None:
            found = self._open[project.name] = pygit2.Repository(str(self.root / project.name))
        return found

    def _begin(self, name: str, files: dict[str, str], branches: tuple[str, ...]) -> None:
        repository = pygit2.init_repository(str(self.root / name), bare=True, initial_head="master")
        commit = _commit(repository, files, [])
        for branch in branches:
            repository.references.create(f"refs/heads/{branch}", commit)


def _commit(repository: pygit2.Repository, files: dict[str, str], parents: list[pygit2.Oid]) -> pygit2.Oid:
    """Return a new commit of exactly these files; no ref has it yet."""
    index = pygit2.Index()
    for path, text in files.items():
        index.add(pygit2.IndexEntry(path, repository.create_blob(text.encode()), FILE))
    return repository.create_commit(None, _ME, _ME, "Configure", index.write_tree(repository), parents)


def _job_of(proposal: DayProposal, patchset: int) -> str:
    """Return a job that is the change's alone, in a file of its own, so that no two changes conflict."""
    name = f"{proposal.project.name.rpartition('/')[2]}-{proposal.topic}"
    job = f"- job: {{name: {name}, parent: base, run: playbooks/new.yaml, vars: {{patchset: {patchset}}}}}\n"
    return f"{job}- project: {{check: {{jobs: [{name}]}}, gate: {{jobs: [{name}]}}}}\n"
