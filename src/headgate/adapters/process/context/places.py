"""Provide the places where a playbook may write, besides the shared work directory, and where it finds roles.

No file of one context is on a search path of another context, or visible there: a playbook with rights that others lack
(it is trusted, or it has secrets) runs nothing that those others left.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from headgate.adapters.keys.clear import write_private
from headgate.adapters.work.directory import remove
from headgate.config.model import JobRole, Playbook

_ROLE_PARTS = ("tasks", "vars", "templates", "files", "handlers", "meta", "defaults", "library")


@dataclass(frozen=True, slots=True)
class PlaybookContext:
    """Hold the home and temporary files of playbooks with equal trust and equal secrets."""

    root: Path
    trusted: bool
    secrets: frozenset[bytes] = frozenset()
    """Secrets, each as its JSON text."""
    clusters: bool = False
    """Whether the context has a kubeconfig."""

    @property
    def secret(self) -> bool:
        """Return whether it has secrets, so that files of its playbooks may contain them."""
        return bool(self.secrets)

    def covers(self, other: PlaybookContext) -> bool:
        """Return whether its playbooks have all rights of the playbooks of the other context."""
        return (self.trusted or not other.trusted) and self.secrets >= other.secrets

    @property
    def careful(self) -> bool:
        """Return whether its playbooks have rights that other playbooks of the build lack."""
        return self.trusted or self.secret

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"

    @property
    def kubeconfig(self) -> Path:
        return self.home / ".kube/config"

    @property
    def writable(self) -> tuple[Path, ...]:
        return self.home, self.tmp


@dataclass(slots=True)
class Contexts:
    """Create the contexts of one build below `root`, each before its first playbook."""

    root: Path
    _known_hosts: str = ""
    """Host keys of the build's machines, which each context gets initially, where a job's programs look for them."""
    _kubeconfig: bytes = b""
    """Access to the clusters of the build's nodes, which each context gets initially; empty if there are none."""
    _known: dict[tuple[bool, frozenset[bytes]], PlaybookContext] = field(default_factory=dict)

    def know_hosts(self, known_hosts: str) -> None:
        """Take the host keys of the machines, before the first context."""
        self._known_hosts = known_hosts

    def access_clusters(self, kubeconfig: bytes) -> None:
        """Take the access to the clusters, before the first context."""
        self._kubeconfig = kubeconfig

    def of(self, book: Playbook) -> PlaybookContext:
        """Return the context of a playbook. Raise OSError."""
        secrets = frozenset(msgspec.json.encode(secret) for secret in book.secrets)
        key = book.trusted, secrets
        if key not in self._known:
            name = f"{len(self._known) + 1}-{'trusted' if book.trusted else 'untrusted'}"
            made = PlaybookContext(self.root / name, book.trusted, secrets, bool(self._kubeconfig))
            for path in made.writable:
                path.mkdir(parents=True)
            if self._known_hosts:
                (made.home / ".ssh").mkdir(mode=0o700)
                (made.home / ".ssh/known_hosts").write_text(self._known_hosts)
            if self._kubeconfig:
                made.kubeconfig.parent.mkdir(mode=0o700)
                write_private(made.kubeconfig, self._kubeconfig)
            self._known[key] = made
        return self._known[key]

    def forget(self) -> None:
        """Remove the files of playbooks with secrets, and the access to clusters, even if the build's directory
        stays.
        """
        for context in self._known.values():
            # A tool may have written the secrets into its home or its temporary files.
            if context.secret:
                remove(context.root)
            elif context.clusters:
                remove(context.home)


def offer_roles(role: JobRole, tree: Path, links: Path) -> Path | None:
    """Return the directory of a repository's roles: `roles`, or a link to the repository as a role; None if it has
    none."""
    if (tree / "roles").is_dir():
        return tree / "roles"
    name = quote(role.name, safe="")  # users choose it, so make it a single name
    # A name that consists of dots would lead out of the directory of links.
    if not any((tree / part).is_dir() for part in _ROLE_PARTS) or not name.strip("."):
        return None
    place = links / quote(role.project, safe="")
    place.mkdir(parents=True)
    (place / name).symlink_to(tree)
    return place


def described_role(role: JobRole, place: Path, tree: Path, chosen: tuple[str, str]) -> dict[str, Any]:
    """Return the description of a role for playbooks. JSON."""
    links = {"link_name": str(place / role.name), "link_target": str(tree)} if not place.is_relative_to(tree) else {}
    return {"checkout": chosen[0], "checkout_description": chosen[1], "role_path": str(place), **links}
