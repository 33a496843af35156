"""Roles of repositories, as playbooks find them, and their descriptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from headgate.config.model import JobRole

_PARTS = ("tasks", "vars", "templates", "files", "handlers", "meta", "defaults", "library")


def offer(role: JobRole, tree: Path, links: Path) -> Path | None:
    """Return the directory of a repository's roles: `roles`, or a link to the repository as a role; None if it has
    none."""
    if (tree / "roles").is_dir():
        return tree / "roles"
    name = quote(role.name, safe="")  # users choose it: make it one name, no path
    # A name of dots alone would lead out of the directory of links.
    if not any((tree / part).is_dir() for part in _PARTS) or not name.strip("."):
        return None
    place = links / quote(role.project, safe="")
    place.mkdir(parents=True)
    (place / name).symlink_to(tree)
    return place


def described(role: JobRole, place: Path, tree: Path, chosen: tuple[str, str]) -> dict[str, Any]:
    """Return the description of a role for playbooks. JSON."""
    links = {"link_name": str(place / role.name), "link_target": str(tree)} if not place.is_relative_to(tree) else {}
    return {"checkout": chosen[0], "checkout_description": chosen[1], "role_path": str(place), **links}
