"""A tenant's configuration read straight from its repositories, without a server."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from headgate.adapters.git.engine import GitEngine
from headgate.base.errors import UserError
from headgate.cli.process import connections, tenants
from headgate.cli.settings import Settings
from headgate.config.dynamic import Layouts
from headgate.config.parse import ParseCache, ParsedBranch
from headgate.config.tenants import Tenant
from headgate.gate.work import CatAnswer, CatRequest


def layouts(settings: Settings, overlay: dict[str, Path] | None = None) -> dict[str, tuple[Tenant, Layouts]]:
    """Tenant -> its configuration as the repositories say now.  `overlay`: project -> a work tree whose files are
    used in place of the default branch's.  Raises UserError for a repository that cannot be read."""
    at = connections(settings)
    _, found = tenants(settings, at)
    with tempfile.TemporaryDirectory() as name:
        engine = GitEngine(Path(name), at)
        return asyncio.run(_read(found, engine, overlay or {}))


async def _read(
    found: dict[str, Tenant], engine: GitEngine, overlay: dict[str, Path]
) -> dict[str, tuple[Tenant, Layouts]]:
    cache = ParseCache()
    read: dict[str, tuple[Tenant, Layouts]] = {}
    for tenant in found.values():
        branches: dict[str, dict[str, ParsedBranch]] = {}
        for project in tenant.projects:
            wanted = (project.load_branch,) if project.trusted else ()
            answer = await engine.do(CatRequest(project.project, project.connection, wanted, project.config_paths))
            assert isinstance(answer, CatAnswer), "the answer to a cat"
            if not answer.ok:
                raise UserError(f"{project.name}: {answer.error}")
            files = dict(answer.files)
            if project.project in overlay and files:
                files[next(iter(files))] = _work_tree(overlay[project.project], project.config_paths)
            branches[project.project] = {b: cache.parse(project, b, files.get(b, {})) for b in answer.branches}
        read[tenant.name] = (tenant, Layouts.of(tenant, branches, cache))
    return read


def _work_tree(root: Path, paths: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in paths:
        place = root / path
        files = sorted(place.rglob("*")) if place.is_dir() else [place]
        for file in files:
            if file.is_file() and (file == place or file.suffix == ".yaml" or file.name == ".zuul.ignore"):
                found[str(file.relative_to(root))] = file.read_text(errors="replace")
    return found
