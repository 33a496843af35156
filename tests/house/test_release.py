"""A release is made by one command, which refuses while anything names another version."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headgate import __version__

ROOT = Path(__file__).parents[2]
FILES = (
    "scripts/release", "CHANGELOG.md", "src/headgate/__init__.py", "packaging/helm/headgate/Chart.yaml",
    "packaging/debian/build", *(str(state.relative_to(ROOT)) for state in ROOT.glob("tests/releases/state-*")),
)  # fmt: skip
DATE = "2027-01-31"
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada", "GIT_COMMITTER_EMAIL": "ada@example.org",
}  # fmt: skip


def git(at: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=at, env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout


def release(at: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(at / "scripts/release"), *words]
    return subprocess.run(command, cwd=at, env=ENVIRONMENT, capture_output=True, text=True, check=False)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    text = (tmp_path / "CHANGELOG.md").read_text()
    head, _, rest = text.partition(f"## {__version__}")
    (tmp_path / "CHANGELOG.md").write_text(f"{head}## {__version__} (unreleased){rest[rest.index(chr(10)) :]}")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "Begin")
    return tmp_path


def test_a_release_has_its_date_and_a_tag_with_its_changes_and_the_next_can_begin(checkout: Path) -> None:
    assert release(checkout, "--check").stdout == f"{__version__} can be released\n"
    assert git(checkout, "tag") == "" and git(checkout, "rev-list", "--count", "HEAD") == "1\n"
    assert release(checkout, "--date", DATE).returncode == 0
    assert git(checkout, "tag", "--points-at", "HEAD") == f"v{__version__}\n"
    assert f"\n## {__version__} ({DATE})\n" in git(checkout, "show", "HEAD:CHANGELOG.md")
    tagged = git(checkout, "tag", "-l", "--format=%(contents)", f"v{__version__}")
    assert tagged.startswith(f"Headgate {__version__}\n\n### Gate\n\n- ") and "\n## " not in tagged
    assert git(checkout, "status", "--porcelain") == ""
    again = release(checkout)
    assert again.returncode == 1 and "is not unreleased" in again.stderr and "exists" in again.stderr
    assert "record tests/releases/state-" in release(checkout, "--next", "9.0.0").stderr
    (checkout / f"tests/releases/state-{__version__}.tar.xz").write_bytes(b"")
    assert release(checkout, "--next", "0.0.1").returncode == 1
    assert release(checkout, "--next", "9.0.0").returncode == 0
    git(checkout, "add", "-A")
    git(checkout, "commit", "-q", "-m", "Begin 9.0.0")
    assert release(checkout, "--check").stdout == "9.0.0 can be released\n"


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("src/headgate/__init__.py", __version__, "7.0.0", "src/headgate/__init__.py 1 has version 7.0.0"),
        ("packaging/helm/headgate/Chart.yaml", f"version: {__version__}", "version: 7.0.0", "Chart.yaml 1 has version"),
        ("packaging/helm/headgate/Chart.yaml", f'"{__version__}"', '"7.0.0"', "Chart.yaml 2 has version 7.0.0"),
        ("CHANGELOG.md", "(unreleased)", "(2026-01-01)", "is not unreleased"),
        ("packaging/debian/build", "s/^__version__", "s/^version", "packaging/debian/build has version ,"),
    ],
)
def test_nothing_is_released_while_versions_differ(checkout: Path, file: str, old: str, new: str, message: str) -> None:
    text = (checkout / file).read_text()
    assert old in text
    (checkout / file).write_text(text.replace(old, new, 1))
    git(checkout, "commit", "-q", "-a", "-m", "Differ")
    refused = release(checkout)
    assert refused.returncode == 1 and message in refused.stderr
    assert git(checkout, "tag") == "" and git(checkout, "rev-list", "--count", "HEAD") == "2\n"


def test_nothing_is_released_with_changes_that_are_not_committed(checkout: Path) -> None:
    (checkout / "left").write_text("")
    refused = release(checkout)
    assert refused.returncode == 1 and "the work tree has changes" in refused.stderr and git(checkout, "tag") == ""


def test_everything_here_names_one_version() -> None:
    lines = release(ROOT, "--check").stderr.splitlines()
    assert not [line for line in lines if " has version " in line or " is missing" in line]
