"""Pushing: a tested commit becomes the head of its branch; what people are told becomes a note on their commit."""

from __future__ import annotations

import re

from headgate.adapters.git.command import GitError, git
from headgate.adapters.git.mirror import MirrorRepository
from headgate.gate.change import Change

NOTES = "refs/notes/headgate"
ATTEMPTS_MAX = 8
"""Tries when somebody else pushes notes at the same moment."""
_HEADING = re.compile(r"^Headgate \((.+)\):$", re.MULTILINE)


async def land(mirror: MirrorRepository, change: Change, expected: str, commit: str, pipeline: str, note: str) -> bool:
    """Advances the branch from `expected` to `commit`, in one atomic push with the end of the change and its note.

    True: the branch has moved, nothing was pushed.  Landed already: nothing to do.  Raises GitError.
    """
    branch = f"refs/heads/{change.branch}"
    ours = (f"refs/for/{change.branch}/{change.topic}", f"refs/approved/{change.branch}/{change.topic}")
    async with mirror.lock:
        for _ in range(ATTEMPTS_MAX):
            refs = await _remote(mirror, branch, *ours, NOTES)
            head = refs.get(branch)
            if head is None:
                raise GitError(("push",), 1, f"the branch {change.branch} is gone")
            if mirror.has(head) and mirror.contains(head, commit):
                return False
            if refs.get(ours[0]) != change.commit:
                raise GitError(("push",), 1, f"{ours[0]} was withdrawn or replaced while it was being landed")
            if head != expected:
                return True
            told = f"{note}\n\n{landed_line(change.branch, commit)}"
            await _note(mirror, change.commit, pipeline, told, refs.get(NOTES, ""))
            leases = {branch: expected, NOTES: refs.get(NOTES, "")}
            specs = [f"{commit}:{branch}", f"{NOTES}:{NOTES}"]
            for ref in ours:
                if refs.get(ref) == change.commit:
                    leases[ref] = change.commit
                    specs.append(f":{ref}")
            if await _push(mirror, leases, specs):
                return False
    raise GitError(("push",), 1, f"{mirror.url}: pushed by others each of {ATTEMPTS_MAX} times")


def landed_line(branch: str, commit: str) -> str:
    """By this line of its note a change that is gone is known to have landed, whatever its mode of merging."""
    return f"Landed on {branch} as {commit}"


async def report(mirror: MirrorRepository, commit: str, pipeline: str, note: str) -> None:
    """The note of `pipeline` on `commit`, in place of an earlier one of it.  Raises GitError."""
    async with mirror.lock:
        for _ in range(ATTEMPTS_MAX):
            refs = await _remote(mirror, NOTES)
            await _note(mirror, commit, pipeline, note, refs.get(NOTES, ""))
            if await _push(mirror, {NOTES: refs.get(NOTES, "")}, [f"{NOTES}:{NOTES}"]):
                return
    raise GitError(("push",), 1, f"{mirror.url}: notes were pushed by others each of {ATTEMPTS_MAX} times")


async def _remote(mirror: MirrorRepository, *refs: str) -> dict[str, str]:
    _, out = await git("ls-remote", "origin", *refs, at=mirror.path)
    return {ref: commit for commit, ref in (line.split("\t", 1) for line in out.splitlines())}


async def _push(mirror: MirrorRepository, leases: dict[str, str], specs: list[str]) -> bool:
    """All or nothing; False when a ref was not where it was expected.  Raises GitError with the remote's reason."""
    options = [f"--force-with-lease={ref}:{commit}" for ref, commit in leases.items()]
    code, out = await git("push", "--atomic", "--porcelain", *options, "origin", *specs, at=mirror.path, ok=(0, 1))
    if code == 0:
        return True
    refused = [line for line in out.splitlines() if line.startswith("!")]
    ours = [line for line in refused if "atomic" not in line]
    if any("stale info" in line or "fetch first" in line or "cannot lock ref" in line for line in ours):
        return False
    reasons = "; ".join(line.split("\t")[-1] for line in ours or refused)
    raise GitError(("push",), code, f"the push was refused: {reasons or out}")


async def _note(mirror: MirrorRepository, commit: str, pipeline: str, text: str, remote: str) -> None:
    """Writes the note onto the remote's notes, locally."""
    if remote:
        await git("fetch", "-q", "--no-write-fetch-head", "origin", f"+{NOTES}:{NOTES}", at=mirror.path)
    else:
        await git("update-ref", "-d", NOTES, at=mirror.path)
    code, old = await git("notes", f"--ref={NOTES}", "show", commit, at=mirror.path, ok=(0, 1))
    sections = _sections(old if code == 0 else "")
    sections.pop(pipeline, None)
    sections[pipeline] = text.strip()
    whole = "\n\n".join(f"Headgate ({name}):\n{body}" for name, body in sections.items())
    await git("notes", f"--ref={NOTES}", "add", "-f", "-F", "-", commit, at=mirror.path, stdin=whole + "\n")


def _sections(note: str) -> dict[str, str]:
    parts = _HEADING.split(note)
    return {name: body.strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}
