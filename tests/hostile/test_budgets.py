"""Test that excessive proposals are refused with a reason, and others continue meanwhile."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Iterator
from itertools import pairwise

import pytest

from headgate.testing.clock import DEADLINE_S

from .arena import ATTACKER, Arena

STANDSTILL_MAX_S = 60.0
"""The main loop may be unresponsive for at most this long on a busy machine; one of these attacks took 16 s and more
on an idle one, and others never ended."""
JOB = "#!/bin/sh\nexit 0\n"


def many_jobs(count: int) -> str:
    made = "".join(
        f"- job: {{name: j{n}, run: jobs/unit, vars: {{some: words and more words}}}}\n" for n in range(count)
    )
    return made + "- project:\n    check:\n      jobs:\n" + "".join(f"        - j{n}\n" for n in range(count))


def chain(links: int, ends: int) -> str:
    """A chain of jobs, each inheriting from the previous one, and many that inherit from the last."""
    vars = ", ".join(f"k{n}: v" for n in range(40))
    made = [
        f"- job: {{name: c{n}, run: jobs/unit{f', parent: c{n - 1}' if n else ''}, vars: {{a{n}: {{{vars}}}}}}}\n"
        for n in range(links)
    ]
    made += [f"- job: {{name: j{n}, parent: c{links - 1}}}\n" for n in range(ends)]
    return "".join(made) + f"- project: {{check: {{jobs: [{', '.join(f'j{n}' for n in range(ends))}]}}}}\n"


def bomb(levels: str = "abcdefgh") -> str:
    made = "a0: &a [x, x, x, x, x, x, x, x, x, x]\n"
    return made + "".join(f"{b}0: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in pairwise(levels))


def indented(text: str) -> str:
    return "".join(f"      {line}\n" for line in text.splitlines())


def dense(count: int) -> str:
    """Every job depends on all previous ones."""
    soft = [f"{{name: j{n}, soft: true}}" for n in range(count)]
    made = [f"- job: {{name: j{n}, run: jobs/unit, dependencies: [{', '.join(soft[:n])}]}}\n" for n in range(count)]
    return "".join(made) + f"- project: {{check: {{jobs: [{', '.join(f'j{n}' for n in range(count))}]}}}}\n"


ATTACKS = {
    "jobs": (many_jobs(5_000), "more than 1000 jobs"),
    "large": ("#" * 50_000_000, "this file has 50 MB"),
    "aliases": (f"- job:\n    name: x\n    run: jobs/unit\n    vars:\n{indented(bomb())}", "more than 500000 values"),
    "texts": (
        f"- job:\n    name: x\n    run: jobs/unit\n    vars:\n      a: &a {'x' * 900_000}\n      b: [{'*a, ' * 60}]\n",
        "this has more than",
    ),
    "deep": ("- job: {name: x, vars: {a: " + "[" * 100_000 + "]" * 100_000 + "}}\n", "more than 200 levels"),
    "values": ("- job: {name: x, vars: {a: [" + "1," * 550_000 + "]}}\n", "more than 500000 values"),
    "number": ("- job: {name: x, vars: {a: " + "1:" * 400_000 + "1}}\n", "is too long"),
    "python": ("- job: {name: !!python/object/apply:os.system [id], run: x}\n", "unknown tag tag:yaml.org,2002"),
    "chain": (chain(190, 990), "more than 3 s"),
    "errors": ("".join(f"- job: {{name: j{n}, parent: k{n}}}\n" for n in range(6_000)), "there are 5900 more errors"),
    "dependencies": (dense(210), "more than 20000 dependencies"),
    "variants": ("".join(f"- job: {{name: j, timeout: {n + 1}}}\n" for n in range(2_100)) + "- job: {name: j, run: x}\n"
        "- project: {check: {jobs: [j]}}\n", "more than 2000 variants"),
}  # fmt: skip


class Pulse(threading.Thread):
    """Request a small page continuously, and remember the longest answer time."""

    def __init__(self, arena: Arena) -> None:
        super().__init__(daemon=True)
        self._url, self._over = f"{arena.headgate.url}/api/tenants", threading.Event()
        self.longest_s = 0.0

    def run(self) -> None:
        while not self._over.wait(0.05):
            began = time.monotonic()
            try:
                with urllib.request.urlopen(self._url, timeout=DEADLINE_S) as answer:
                    answer.read()
            except OSError:  # the test has failed, and the gate is gone
                return
            self.longest_s = max(self.longest_s, time.monotonic() - began)

    def end(self) -> float:
        self._over.set()
        self.join()
        return self.longest_s


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    settings = "config_reading_max_s = 3\n"  # seconds of processor time; a busy machine is slower, too
    with Arena(tmp_path_factory.mktemp("arena"), scheduler=settings, files={"jobs/unit": JOB}) as made:
        yield made


def test_nothing_that_is_too_large_stops_the_others(arena: Arena) -> None:
    pulse = Pulse(arena)
    pulse.start()
    commits = {name: arena.propose(ATTACKER, f"x-{name}", {"zuul.yaml": text}) for name, (text, _) in ATTACKS.items()}
    took_s = arena.neighbours_land()
    for name, (_, why) in ATTACKS.items():
        note = arena.note_section(ATTACKER, commits[name], "check")
        assert why in note and "zuul.yaml" in note, f"{name}: {note[:2_000]}"
    longest_s = pulse.end()
    print(f"neighbours took {took_s:.1f} s; the loop stood still for {longest_s:.2f} s")
    assert longest_s < STANDSTILL_MAX_S
    arena.neighbours_land()


@pytest.mark.long
def test_variables_that_expand_to_gigabytes_fail_only_their_build(arena: Arena) -> None:
    own = "- job: {name: attack, run: jobs/unit, include-vars: [vars.yaml]}\n- project: {check: {jobs: [attack]}}\n"
    commit = arena.propose(ATTACKER, "variables", {"zuul.yaml": own, "vars.yaml": bomb("abcdefghijkl")})
    arena.neighbours_land()
    note = arena.note_section(ATTACKER, commit, "check")
    assert "cannot be included" in note and "more than" in note, note
