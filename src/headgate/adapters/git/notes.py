"""What people are told of a change: a note on its commit, with a section for each pipeline."""

from __future__ import annotations

import re

from headgate.adapters.git.command import git
from headgate.adapters.git.mirror import MirrorRepository

NOTES = "refs/notes/headgate"
_HEADING = re.compile(r"^Headgate \((.+)\):$", re.MULTILINE)
_LANDED = re.compile(r"^Landed on (.+) as ([0-9a-f]{40,64})$", re.MULTILINE)


def landed_line(branch: str, commit: str) -> str:
    """By this line of its note a change that is gone is known to have landed, whatever its mode of merging."""
    return f"Landed on {branch} as {commit}"


def landed_as(note: str, branch: str) -> str:
    """The commit the change landed on the branch as; empty: the note does not say that it did."""
    return next((commit for on, commit in reversed(_LANDED.findall(note)) if on == branch), "")


async def bring(mirror: MirrorRepository, remote: str) -> None:
    """The remote's notes, which are at `remote` (empty: there are none), become the mirror's.
    For the holder of `exclusive`."""
    if not remote:
        await git("update-ref", "-d", NOTES, at=mirror.path)
    elif await mirror.missing([remote]):
        await mirror.fetch_refs(f"+{NOTES}:{NOTES}")
    else:
        await git("update-ref", NOTES, remote, at=mirror.path)


async def annotate(mirror: MirrorRepository, commit: str, pipeline: str, text: str, remote: str) -> str:
    """The remote's notes with this section of this commit's note; where they are then, `remote` if nothing changed.
    For the holder of `exclusive`.  `commit` must be here."""
    await bring(mirror, remote)
    old = await read(mirror, commit)
    new = _with_section(old, pipeline, text)
    if new == old:
        return remote
    await git("notes", f"--ref={NOTES}", "add", "-f", "-F", "-", commit, at=mirror.path, stdin=new)
    _, out = await git("rev-parse", NOTES, at=mirror.path)
    return out.strip()


async def read(mirror: MirrorRepository, commit: str) -> str:
    """The note as it is in the mirror; empty when there is none."""
    code, note = await git("notes", f"--ref={NOTES}", "show", commit, at=mirror.path, ok=(0, 1))
    return note if code == 0 else ""


def _with_section(note: str, pipeline: str, text: str) -> str:
    parts = _HEADING.split(note)
    sections = {name: body.strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}
    sections.pop(pipeline, None)
    sections[pipeline] = text.strip()
    return "\n\n".join(f"Headgate ({name}):\n{body}" for name, body in sections.items()) + "\n"
