"""Load random configurations, to check that the loader returns a layout and errors for all of them.

`python -m headgate.testing.fuzz SECONDS` runs for that long; it prints a configuration that crashes the loader, and
its seed.
"""

from __future__ import annotations

import sys
import time
from random import Random
from typing import Any

import msgspec
import yaml

from headgate.config.dynamic import TenantLayouts
from headgate.config.keys.job import JOB
from headgate.config.keys.objects import KINDS, PIPELINE, PROJECT, PROJECT_PIPELINE
from headgate.config.keys.tenantfile import PROJECT as TENANT_PROJECT
from headgate.config.keys.tenantfile import TENANT
from headgate.config.kinds.stanza import TABLES
from headgate.config.operator.file import parse_tenant_file
from headgate.config.operator.model import ConfigErrors, Connection, Tenant
from headgate.config.parse import ParseCache

CONNECTIONS = {
    "forge": Connection("forge", "git.acme"),
    "review": Connection("review", "review.acme", "gerrit"),
    "hub": Connection("hub", "hub.acme", "github"),
}
TENANTS = """
- tenant:
    name: acme
    source:
      forge:
        config-projects: [ops]
        untrusted-projects: [app: {include-provider-config: true, configure-projects: lib, shadow: lib}, lib]
"""
SOUND = """
- pipeline: {name: gate, manager: dependent, post-review: true, trigger: {forge: [{event: change-approved}]}}
- pipeline: {name: check, manager: independent, allow-parameters: true}
- job: {name: base, parent: null, run: base.yaml, roles: [{zuul: lib}]}
- job: {name: unit, run: [a.yaml, {name: b.yaml, semaphores: s}], vars: &v {a: 1, b: {c: [1, 2]}}, files: [^src/]}
- job: {name: lint, parent: unit, vars: {<<: *v, z: 1}, secrets: {name: x, secret: k}, dependencies: !inherit unit}
- nodeset: {name: n, nodes: [{name: [a, b], label: l}], groups: [{name: g, nodes: a}]}
- secret: {name: k, data: {p: !encrypted/pkcs1-oaep [YWJj]}}
- project-template: {name: t, check: {jobs: [unit, lint]}, vars: {q: 1}}
- project: {templates: t, queue: q, gate: {jobs: [unit: {voting: false, timeout: 10}, noop], fail-fast: true}}
- queue: {name: q, type: per-branch}
- pragma: {implied-branches: [master]}
"""
NAMES = ("unit", "lint", "base", "noop", "n", "k", "t", "q", "gate", "check", "app", "lib", "ops", "^a", "master", "s")
ODD: tuple[Any, ...] = (  # JSON and more
    None, True, False, 0, -1, 1, 10**30, 1.5, float("nan"), float("inf"), "", " ", "(", "^(?!x)", "ä\u2028", "\x07",
    "2001-01-01", "!override", [], {}, [[]], [None], {"": None}, {"name": None}, {"name": "unit"}, ["unit", "unit"],
    {"a": {"a": {}}}, [{"name": ["a", "a"], "label": 1}], {"regex": "x", "negate": 1}, {"regex": "("},
)  # fmt: skip
PUNCTUATION = ":-{}[],&*!|>%@`'\"#?\n\t \x00\x85\u2028\ud800<"


def configuration(random: Random) -> dict[str, str]:
    """Map `project@branch` to the text of a file."""
    places = ("ops@master", "app@master", "app@stable", "lib@master")
    return {place: _text(random) for place in places if random.random() < 0.8}


def _text(random: Random) -> str:
    if random.random() < 0.5:
        stanzas = [_stanza(random) for _ in range(random.randint(0, 8))]
        text: str = yaml.dump(stanzas, allow_unicode=True, sort_keys=False)
        return text.replace("'!override'", "!override {a: 1}")
    # Small changes to a sound text get further into the loader than random structures do.
    letters = list(SOUND)
    for _ in range(random.choice((0, 1, 1, 2, 5, 20))):
        at = random.randrange(len(letters))
        match random.randrange(4):
            case 0:
                del letters[at : at + random.choice((1, 1, 3, 40))]
            case 1:
                letters.insert(at, random.choice(PUNCTUATION))
            case 2:
                letters[at:at] = letters[(start := random.randrange(len(letters))) : start + random.randint(1, 60)]
            case _:
                letters[at] = random.choice(PUNCTUATION)
        if not letters:
            break
    return "".join(letters)


def _stanza(random: Random) -> dict[str, Any]:
    kind = random.choice(KINDS)
    known = {"job": JOB, "project": PROJECT, "project-template": PROJECT, "pipeline": PIPELINE}.get(kind)
    keys = [*(known or TABLES.get(kind, PROJECT)), *NAMES[:10]]
    body = {random.choice(keys): _value(random, 0) for _ in range(random.randint(0, 6))}
    return {kind: {"name": random.choice(NAMES), **body}}


def _value(random: Random, depth: int) -> Any:
    match random.randrange(6 if depth < 4 else 2):
        case 0:
            return random.choice(NAMES)
        case 1:
            return random.choice(ODD)
        case 2:
            return [_value(random, depth + 1) for _ in range(random.randint(0, 3))]
        case 3:
            return {random.choice(NAMES): _value(random, depth + 1) for _ in range(random.randint(0, 3))}
        case 4:
            return {random.choice([*PROJECT_PIPELINE, "name", "nodes", "label"]): _value(random, depth + 1)}
        case _:
            return {random.choice(list(JOB)): _value(random, depth + 1) for _ in range(random.randint(0, 3))}


def load(files: dict[str, str]) -> int:
    """Load a configuration as a running gate does, both landed and proposed, and return the number of errors."""
    acme = parse_tenant_file(TENANTS, "tenants.yaml", CONNECTIONS).tenants["acme"]
    cache = ParseCache()
    texts = _texts(acme, {"ops@master": SOUND, **files})
    landed = TenantLayouts.of(acme, _parsed(acme, cache, texts), cache)
    sound = TenantLayouts.of(acme, _parsed(acme, cache, _texts(acme, {"ops@master": SOUND})), cache)
    proposed, errors = sound.proposed(texts, ("git.acme/app", "master"))
    for layout in (landed.landed, proposed):
        msgspec.json.encode(layout.errors)
        for pipeline in layout.pipelines:
            for project in acme.projects:
                layout.queue_of(project.project, "master", pipeline)
                for branch in ("master", "stable"):
                    graph = layout.freeze(pipeline, project.project, branch, files=("src/a",), ahead=sound.landed)
                    msgspec.json.encode(graph)
    assert all(error.text and error.name for error in (*landed.landed.errors, *errors))
    return len(landed.landed.errors)


def _texts(acme: Tenant, files: dict[str, str]) -> dict[str, dict[str, dict[str, str]]]:
    found: dict[str, dict[str, dict[str, str]]] = {p.project: {} for p in acme.projects}
    for where, text in files.items():
        name, _, branch = where.partition("@")
        found[f"git.acme/{name}"][branch] = {"zuul.yaml": text}
    return found


def _parsed(acme: Tenant, cache: ParseCache, texts: dict[str, dict[str, dict[str, str]]]) -> dict[str, Any]:
    return {
        project: {branch: cache.parse(acme.by_canonical[project], branch, files) for branch, files in found.items()}
        for project, found in texts.items()
    }


def load_tenants(random: Random) -> None:
    """Load a random operator's file, which must give tenants or errors."""
    project = {random.choice(list(TENANT_PROJECT)): _value(random, 1) for _ in range(random.randint(0, 3))}
    body = {random.choice(list(TENANT)): _value(random, 1) for _ in range(random.randint(0, 4))}
    source = {"forge": {"untrusted-projects": ["app", {"lib": project}, _value(random, 2)]}}
    kinds = ("tenant", "global-semaphore", "authorization-rule", "role", "api-root")
    more = [{random.choice(kinds): _value(random, 0)} for _ in range(random.randint(0, 2))]
    text = yaml.dump([{"tenant": {"name": "t", "source": source, **body}}, *more], allow_unicode=True)
    try:
        msgspec.json.encode(parse_tenant_file(text, "tenants.yaml", CONNECTIONS).tenants)
    except ConfigErrors as refused:
        assert all(error.text for error in refused.errors)


def main(seconds: float) -> None:
    end, seed, errors = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        seed += 1
        files = configuration(Random(seed))
        try:
            errors += load(files)
            load_tenants(Random(seed))
        except BaseException:
            print(f"seed {seed}:", files)
            raise
    print(f"{seed} configurations, {errors} errors reported, no crash")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
