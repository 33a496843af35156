"""List the dialects of all forges. A new driver needs a row here, a module with its keys beside this one, and a package
of its own below `adapters/forges`."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.config.forges.gerrit import GERRIT
from headgate.config.forges.git import GIT
from headgate.config.forges.gitea import GITEA
from headgate.config.forges.github import GITHUB
from headgate.config.forges.gitlab import GITLAB
from headgate.config.forges.keyterms import Dialect
from headgate.config.forges.pagure import PAGURE

DIALECTS: Mapping[str, Dialect] = {
    "git": GIT,
    "gerrit": GERRIT,
    "github": GITHUB,
    "gitlab": GITLAB,
    "gitea": GITEA,
    "pagure": PAGURE,
}
