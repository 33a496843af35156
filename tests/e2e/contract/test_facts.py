"""Test that facts set with `cacheable` reach later playbooks of any trust, with no more rights than they should
have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.builds.test_secrets import TOKEN, Keys, with_secret

from .stage import Stage

pytestmark = pytest.mark.sampled

ENSURE = """
- hosts: all
  tasks:
    - set_fact: {ensured: "/opt/{{ 'tool' }}", tree: {deep: [1, "{{ ansible_user_id }}"]}, cacheable: true}
    - set_fact: {braces: !unsafe "{{ lookup('pipe', 'id') }}", cacheable: true}
    - set_fact: {gone: 1}
- hosts: localhost
  gather_facts: false
  tasks:
    - set_fact: {of_executor: here, cacheable: true}
"""
USE = """
- hosts: all
  gather_facts: false
  tasks:
    - debug: {msg: "%(word)s uses {{ ensured }} of {{ tree.deep[0] }} {{ gone | default('-') }} {{ braces }}"}
    - debug: {msg: "%(word)s as facts {{ ansible_facts.ensured | default('-') }}"}
- hosts: localhost
  gather_facts: false
  tasks:
    - debug: {msg: "%(word)s runs {{ of_executor }}"}
"""
BRACES = "{{ lookup('pipe', 'id') }}"


@pytest.mark.long
async def test_facts_of_pre_run_are_available_in_run_and_post_run(stage: Stage) -> None:
    pre = stage.book("pre.yaml", ENSURE)
    run = stage.book("run.yaml", USE % {"word": "run"})
    post = stage.book("post.yaml", USE % {"word": "post"}, trusted=True)
    await stage.build(pre_run=(pre,), run=(run,), post_run=(post,))
    for word, as_fact in (("run", "/opt/tool"), ("post", "-")):
        assert f"one | {word} uses /opt/tool of 1 - {BRACES}" in stage.log, stage.log
        assert f"one | {word} as facts {as_fact}" in stage.log
        assert f"localhost | {word} runs here" in stage.log


SECRET_FACT = """
- hosts: all
  gather_facts: false
  tasks:
    - set_fact: {auth: "Bearer {{ pypi.token }}", tool: "/bin/up", cacheable: true}
"""
LOOKS = """
- hosts: all
  gather_facts: false
  tasks:
    - debug: {msg: "%s has {{ tool }} {{ auth is defined }}"}
"""


@pytest.mark.long
async def test_a_fact_that_contains_a_secret_is_only_for_playbooks_that_have_the_secret(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.opened(Keys())
    pre = with_secret(stage.book("pre.yaml", SECRET_FACT))
    run, post = stage.book("run.yaml", LOOKS % "run"), with_secret(stage.book("post.yaml", LOOKS % "post"))
    trusted = stage.book("base.yaml", LOOKS % "base", trusted=True)
    await stage.build(pre_run=(pre,), run=(run,), post_run=(post, trusted))
    assert "run has /bin/up False" in stage.log and "base has /bin/up False" in stage.log, stage.log
    assert "post has /bin/up True" in stage.log and TOKEN not in stage.log


@pytest.mark.long
async def test_variables_of_the_job_override_facts_of_less_trusted_playbooks(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    says: dict[str, Any] = {"vars": {"where": "archive"}, "host_vars": {"one": {"port": 1}}}
    sets = "- hosts: all\n  gather_facts: false\n  tasks: [{set_fact: {where: x, port: 2, free: 3, cacheable: true}}]\n"
    looks = "- hosts: all\n  gather_facts: false\n  tasks: [{debug: {msg: 'W {{ where }} {{ port }} {{ free }}'}}]\n"
    run, post = stage.book("run.yaml", sets), stage.book("post.yaml", looks, trusted=True)
    await stage.build(run=(run, stage.book("again.yaml", looks)), post_run=(post,), **says)
    assert stage.log.index("one | W x 2 3") < stage.log.index("one | W archive 1 3"), stage.log
