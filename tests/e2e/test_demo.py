"""Test the demonstration as a new user sees it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import pytest
from playwright.sync_api import Page, expect

from headgate.testing.clock import DEADLINE_S
from headgate.testing.repositories import run_git
from tests.e2e.copies import HEADGATE, Copy
from tests.waiting import wait_for

EVENTS = "a worker received: "
LINES_MAX, COLUMNS_MAX = 20, 80
RECORDING = Path(__file__).parents[2] / "docs/how-to/images/demo.svg"
SLEPT_S = 8.0
"""Time for which the jobs of changes that are tested one by one sleep."""


def test_the_demo_plays_its_story_and_then_prints_next_steps(tmp_path: Path) -> None:
    with running_demo(tmp_path, "git", "-v") as (running, output):
        text = output.read_text()
        story, _, rest = text.partition("\nYour turn:\n")
        assert "demo.example/app master zuul.yaml:5: error: the job 'lint' is not defined\n" in story
        assert "a worker received: report of gate, success: " in story
        without, _, gated = story.partition("With Headgate")
        assert without.count("passes\n") == 2 and "AttributeError: module 'core' has no attribute 'add'" in without
        assert "AttributeError: module 'core' has no attribute 'add'" in gated.partition("rejected  api")[2]
        printed = [line for line in story.splitlines() if not line.startswith(EVENTS)]
        assert len([line for line in printed if line]) <= LINES_MAX, story
        assert normal(printed) == normal(recorded())[: len(printed)], "`scripts/demo-recording` records it again"
        at_once = int(found(gated, r"up to (\d+) in parallel"))
        assert float(found(gated, r"One by one, the first 4 alone take ([\d.]+) s")) >= SLEPT_S, "it is measured"
        assert 1 < at_once <= 8 and "pass all tests together" in gated
        commands = [line.partition("  #")[0] for line in rest.splitlines() if line.startswith("  ")]
        mine = {**os.environ, "GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@example.org",
                "GIT_COMMITTER_NAME": "Ada", "GIT_COMMITTER_EMAIL": "ada@example.org"}  # fmt: skip
        subprocess.run(["sh", "-ec", "\n".join(commands)], cwd=tmp_path, check=True, capture_output=True, env=mine)
        hub = tmp_path / "demo" / "hub" / "app"
        wait_for("it lands", lambda: "HELLO" in run_git("ls-tree", "--name-only", "master", at=hub))
        running.send_signal(signal.SIGINT)
        assert running.wait(DEADLINE_S) == 0, output.read_text()
        assert output.read_text().splitlines()[-1] == "demo: landed 6, rejected 2, lost 0"
        assert "Traceback" not in output.read_text() and "WARNING" not in output.read_text(), output.read_text()


@pytest.mark.long
def test_the_recording_fits_the_output_of_a_run_on_one_screen_even_without_a_sandbox(tmp_path: Path) -> None:
    """As on most laptops, there is no bubblewrap: the warning must not interrupt the story."""
    (tmp_path / "bin").mkdir()
    for path in (path for place in os.get_exec_path() for path in sorted(Path(place).glob("*"))):
        if path.name != "bwrap" and not (tmp_path / "bin" / path.name).is_symlink():
            (tmp_path / "bin" / path.name).symlink_to(path)
    environment = {**os.environ, "PATH": str(tmp_path / "bin")}
    (tmp_path / ".venv").symlink_to(Path(HEADGATE).parents[1])
    with open(tmp_path / "output", "w+") as out:
        streams = {"stdout": out, "stderr": out}
        done = subprocess.run(
            [".venv/bin/headgate", "demo"], cwd=tmp_path, env=environment, timeout=300, check=False, **streams
        )
    text = (tmp_path / "output").read_text()
    assert done.returncode == 0, text
    printed = [line for line in text.splitlines() if not line.startswith("WARNING")]
    assert normal(printed) == normal(recorded())
    assert len(printed) <= LINES_MAX and max(map(len, printed)) <= COLUMNS_MAX
    story, warning, _ = text.partition("WARNING headgate.executor: Jobs run without a sandbox: the program bwrap")
    assert warning and story.endswith("The heads pass all tests together.\n"), text


def recorded() -> list[str]:
    """Return the lines of the recording in the README, without the command."""
    texts = ElementTree.parse(RECORDING).getroot().findall("{http://www.w3.org/2000/svg}text")
    command, *lines = ("".join(text.itertext()) for text in texts)
    assert command == "$ make demo"
    return lines


def normal(lines: list[str]) -> list[str]:
    """Return the lines without parts that differ from run to run: ports, seconds, the load of a busy machine, and
    how many were tested in parallel."""
    return [re.sub(r":\d{4,5}/|\d+\.\d s( at load \d+)?|up to \d", "…", line) for line in lines]


@pytest.mark.long
def test_a_machine_is_burned_in_before_builds_get_it(tmp_path: Path) -> None:
    command = [HEADGATE, "demo", "--story", "machines"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "demo: burned in 1, broken 1, landed 1"
    assert "m1 is burned in" in done.stdout and "m2 is broken" in done.stdout and "Traceback" not in done.stderr


@contextmanager
def running_demo(directory: Path, forge: str, *options: str) -> Iterator[tuple[Copy, Path]]:
    """Provide a demonstration that has ended and stays, and its output."""
    output = directory / "output"
    with open(output, "wb") as out:
        command = [HEADGATE, "demo", "--forge", forge, "--keep", *options, "--directory", "demo"]
        running = Copy(command, directory, {**os.environ, "PYTHONUNBUFFERED": "1"}, out)
    try:
        wait_for(
            "it stays", lambda: running.poll() is not None or "until you press" in output.read_text(), 3 * DEADLINE_S
        )
        assert running.poll() is None, output.read_text()
        yield running, output
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()


@pytest.mark.long
def test_on_a_stand_in_people_go_on_by_hand(tmp_path: Path, page: Page) -> None:
    with running_demo(tmp_path, "github") as (running, output):
        text = output.read_text()
        page.goto(found(text, r"opens (\S+) : Compute perimeters"))
        expect(page.locator("h1")).to_contain_text("Compute perimeters")
        expect(page.locator("#checks tr").nth(1)).to_contain_text("example/gatefailure")
        assert page.locator(".bad").first.evaluate("one => getComputedStyle(one).color") == "rgb(209, 36, 47)"
        expect(page.locator("#said article")).to_have_count(2)
        page.locator("#said a", has_text="/build/").last.click()
        expect(page.locator("h1")).to_contain_text("together")
        by_hand(page, tmp_path / "mine", *(found(text, r"git clone (\S+)"), found(text, r"GitHub stays at (\S+)")))
        running.send_signal(signal.SIGINT)
        assert running.wait(DEADLINE_S) == 0, output.read_text()
        assert output.read_text().splitlines()[-1] == "demo: landed 6, rejected 2, lost 0"
        assert "Traceback" not in output.read_text() and "WARNING" not in output.read_text(), output.read_text()


def found(text: str, pattern: str) -> str:
    match = re.search(pattern, text)
    assert match is not None, text
    return match[1]


def by_hand(page: Page, at: Path, clone: str, home: str) -> None:
    """Propose a change with git and the pages, and approve it: it lands."""
    run_git("clone", "-q", clone, str(at), at=at.parent)
    run_git("checkout", "-q", "-b", "greet", at=at)
    (at / "HELLO").write_text("hello\n")
    run_git("add", "-A", at=at)
    run_git("commit", "-q", "-m", "Greet", at=at)
    run_git("push", "-q", "origin", "greet", at=at)
    page.goto(home)
    page.get_by_label("Title").fill("<script>document.title = 'hacked'</script>")
    page.locator("select[name=who]").select_option("ada")
    page.get_by_role("button", name="Open").click()
    expect(page.locator("h1")).to_contain_text("<script>")
    change = page.url
    wait_for("it is checked", lambda: page.goto(change) and "success" in page.locator("#checks").inner_text())
    page.locator("select[name=who]").select_option("bob")
    page.get_by_role("button", name="Approve").click()
    expect(page.locator("#said")).to_contain_text("approved")
    wait_for("it lands", lambda: page.goto(change) and page.locator(".word.good", has_text="merged").count())
    assert page.title() != "hacked"
    run_git("fetch", "-q", "origin", at=at)
    assert run_git("show", "origin/main:HELLO", at=at) == "hello"
