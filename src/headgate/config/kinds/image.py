"""Parse the names of images, and decide which images jobs may use."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from headgate.base.errors import ConfigurationError

HUB = "docker.io"
PUBLIC = (
    "docker.io/* ghcr.io/* quay.io/* gcr.io/* mcr.microsoft.com/* public.ecr.aws/* registry.fedoraproject.org/* "
    "registry.gitlab.com/* registry.opensuse.org/*"
)
"""Patterns of the images of public registries. Other registries need permission, because the executor, which fetches
the images, can reach more hosts than jobs can."""
NAME_SIZE_MAX = 400
_REGISTRY = r"(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*|\[[0-9a-f:]+\])(?::[0-9]{1,5})?"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_NAME = re.compile(
    rf"(?:(?P<registry>{_REGISTRY})/)?(?P<path>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


class BadImageName(ConfigurationError, ValueError):
    """Report an invalid image name. The text is shown to the user."""


@dataclass(frozen=True, slots=True)
class ImageName:
    """Represent an image in a registry."""

    repository: str
    """Repository, with its registry."""
    tag: str
    digest: str = ""
    """`sha256:...` if the name pins the image regardless of its tag; otherwise empty."""

    @staticmethod
    def read(text: str) -> ImageName:
        """Parse a name; one without a registry refers to Docker Hub. Raise BadImageName."""
        # Check the length first, because Python's engine backtracks in nested repetitions.
        found = _NAME.fullmatch(text) if len(text) <= NAME_SIZE_MAX else None
        if found is None:
            raise BadImageName(
                f"{text[:80]!r} is not the name of an image: use REGISTRY/NAME:TAG or NAME@sha256:DIGEST"
            )
        registry, path = found["registry"] or "", found["path"]
        if registry == "localhost":
            raise BadImageName(f"{text[:80]!r} names no registry: local images of a machine cannot be used")
        if registry and not set(".:[") & set(registry):  # a user's name at Docker Hub
            registry, path = "", f"{registry}/{path}"
        if not registry:
            # Docker Hub keeps official images in the namespace `library`.
            registry, path = HUB, path if "/" in path else f"library/{path}"
        digest = found["digest"] or ""
        return ImageName(f"{registry}/{path}", found["tag"] or ("" if digest else "latest"), digest)

    def __str__(self) -> str:
        if self.digest:
            return f"{self.repository}@{self.digest}"
        return f"{self.repository}:{self.tag}"


def allowed(name: ImageName, patterns: Sequence[str]) -> bool:
    """Return whether one of the patterns, in which `*` stands for any text, matches the complete name or the name
    without its tag."""
    return any(fnmatchcase(text, pattern) for pattern in patterns for text in (str(name), name.repository))
