"""Names of images, and which of them jobs may have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

HUB = "docker.io"
PUBLIC = (
    "docker.io/* ghcr.io/* quay.io/* gcr.io/* mcr.microsoft.com/* public.ecr.aws/* registry.fedoraproject.org/* "
    "registry.gitlab.com/* registry.opensuse.org/*"
)
"""Patterns of registries that everybody may reach: the executor fetches images, and it reaches more than jobs do."""
NAME_SIZE_MAX = 400
_REGISTRY = r"(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*|\[[0-9a-f:]+\])(?::[0-9]{1,5})?"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_NAME = re.compile(
    rf"(?:(?P<registry>{_REGISTRY})/)?(?P<path>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


class BadImageName(ValueError):
    """Report an invalid image name. The text is for people."""


@dataclass(frozen=True, slots=True)
class ImageName:
    """Represent an image in a registry."""

    repository: str
    """Repository, with its registry."""
    tag: str
    digest: str = ""
    """`sha256:...`, when the name says which image it is whatever its tag comes to mean."""

    @staticmethod
    def read(text: str) -> ImageName:
        """Return what a name means: one that names no registry is of Docker Hub.  Raises BadImageName."""
        found = _NAME.fullmatch(text) if len(text) <= NAME_SIZE_MAX else None
        if found is None:
            raise BadImageName(f"{text[:80]!r} is not a name of an image: REGISTRY/NAME:TAG, or NAME@sha256:DIGEST")
        registry, path = found["registry"] or "", found["path"]
        if registry == "localhost":
            raise BadImageName(f"{text[:80]!r} is of no registry: images of a machine's own cannot be named")
        if registry and not set(".:[") & set(registry):  # a user's name at Docker Hub
            registry, path = "", f"{registry}/{path}"
        if not registry:
            registry, path = HUB, path if "/" in path else f"library/{path}"
        digest = found["digest"] or ""
        return ImageName(f"{registry}/{path}", found["tag"] or ("" if digest else "latest"), digest)

    def __str__(self) -> str:
        if self.digest:
            return f"{self.repository}@{self.digest}"
        return f"{self.repository}:{self.tag}"


def allowed(name: ImageName, patterns: Sequence[str]) -> bool:
    """Return whether a pattern fits, with * for any text: the whole name, or the name without its tag."""
    return any(fnmatchcase(text, pattern) for pattern in patterns for text in (str(name), name.repository))
