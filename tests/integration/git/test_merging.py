"""Test merging of chains of changes with any content."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace
from pygit2.enums import ObjectType

from headgate.adapters.git.command import environment, git
from headgate.adapters.git.engine import GitEngine
from headgate.gate.state.gitwork import MergeItem
from headgate.gate.state.works import CatAnswer, CatRequest, MergeAnswer, MergeRequest, RefAt
from headgate.ports.work import Unreachable
from headgate.testing.repositories import Repositories, run_git

from .conftest import LINES
from .words import PROJECT, change, connection, engine, item, landed, merged, refs, state_of

MODES = ("merge", "squash-merge", "cherry-pick", "rebase")


def edited(**lines: str) -> str:
    """Return the nine lines, some with another text: `l1="one"`."""
    texts = LINES.split("\n")[:-1]
    for name, text in lines.items():
        texts[int(name[1:]) - 1] = text
    return "".join(f"{text}\n" for text in texts)


def committed(repositories: Repositories, topic: str, message: str = "", *args: str) -> str:
    """Propose what is staged in the clone."""
    work = repositories.work("code")
    run_git("commit", "-q", "--allow-empty", "-m", message or topic, *args, at=work)
    run_git("push", "-q", "-f", "origin", f"HEAD:refs/for/master/{topic}", at=work)
    return run_git("rev-parse", "HEAD", at=work)


def begin(repositories: Repositories, at: str = "origin/master") -> Path:
    work = repositories.work("code")
    run_git("fetch", "-q", "origin", at=work)
    run_git("checkout", "-q", "--detach", at, at=work)
    return work


@pytest.mark.parametrize("mode", MODES)
async def test_same_input_same_commit_on_every_machine(
    repositories: Repositories, mode: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = repositories.propose("code", "one", {"a": edited(l1="one"), "moved/b": "b\n"})
    two = repositories.propose("code", "two", {"a": edited(l9="two")})
    chain = (item(one, "one", mode), item(two, "two", mode))
    here = await state_of(engine(repositories, "x"), *chain)
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(
        "[user]\nname = Somebody\n[merge]\nrenames = false\nconflictStyle = diff3\n[core]\nautocrlf = true\n"
        f"attributesFile = {home}/attributes\n[commit]\ngpgSign = true\n[i18n]\ncommitEncoding = latin-1\n"
    )
    (home / "attributes").write_text("* merge=union\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_AUTHOR_DATE", "2001-01-01T00:00:00")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert here == await state_of(engine(repositories, "y"), *chain)
    three = repositories.propose("code", "three", {"a": edited(l1="three")})
    answer = await merged(engine(repositories, "y"), item(one, "one", mode), item(three, "three", mode))
    assert not answer.ok, "the user's attributes would have merged both sides"


def test_a_remote_is_talked_to_as_the_user_would() -> None:
    of = {"HOME": "/home/ada", "GIT_SSH_COMMAND": "ssh -i key", "GIT_DIR": "/elsewhere", "SSH_AUTH_SOCK": "/agent"}
    remote, alone = environment(True, of), environment(False, of)
    assert remote["GIT_SSH_COMMAND"] == "ssh -i key" and remote["SSH_AUTH_SOCK"] == "/agent"
    assert "GIT_DIR" not in remote and "GIT_CONFIG_GLOBAL" not in remote
    assert "GIT_SSH_COMMAND" not in alone and alone["GIT_CONFIG_GLOBAL"] == os.devnull


async def test_credentials_of_the_user_reach_remotes_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".gitconfig").write_text("[credential]\nhelper = vault\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    command = ("config", "--get", "credential.helper")
    assert await git(*command, at=tmp_path, remote=True, ok=(0, 1)) == (0, "vault\n")
    assert await git(*command, at=tmp_path, ok=(0, 1)) == (1, "")


async def test_a_checkout_contains_the_merged_chain(repositories: Repositories) -> None:
    one = repositories.propose("code", "one", {"a": edited(l1="one")})
    two = repositories.propose("code", "two", {"a": edited(l9="two")})
    state = await state_of(engine(repositories, "x"), item(one, "one"), item(two, "two"))
    tree = repositories.root / "tree"
    await engine(repositories, "elsewhere").checkout(state, PROJECT, "master", tree)
    assert (tree / "a").read_text() == edited(l1="one", l9="two")


async def test_a_conflict_names_files_and_the_change(repositories: Repositories) -> None:
    one = repositories.propose("code", "one", {"a": "x\n", "b": "x\n"})
    two = repositories.propose("code", "two", {"a": "y\n", "b": "y\n"})
    answer = await merged(engine(repositories), item(one, "one"), item(two, "two"))
    assert (answer.ok, answer.blame) == (False, "two")
    assert "conflicts in: a, b" in answer.error


async def test_files_in_conflict_are_named_as_people_wrote_them(repositories: Repositories) -> None:
    names = ("grün/ñ 日本.txt", 'with "quotes", and commas', "two\nlines")
    one = repositories.propose("code", "one", dict.fromkeys(names, "x\n"))
    two = repositories.propose("code", "two", dict.fromkeys(names, "y\n"))
    answer = await merged(engine(repositories), item(one, "one"), item(two, "two"))
    for shown in ("grün/ñ 日本.txt", '"with \\"quotes\\", and commas"', '"two\\nlines"'):
        assert shown in answer.error


async def test_every_kind_of_conflict_is_described(repositories: Repositories) -> None:
    work = begin(repositories)
    (work / "a").unlink()
    (work / "a").symlink_to("b")
    run_git("add", "-A", at=work)
    link = committed(repositories, "link")
    text = repositories.propose("code", "text", {"a": edited(l1="one")})
    answer = await merged(engine(repositories), item(text, "text"), item(link, "link"))
    assert not answer.ok and "a (distinct modes)" in answer.error
    work = begin(repositories)
    run_git("rm", "-q", "a", at=work)
    gone = committed(repositories, "gone")
    answer = await merged(engine(repositories), item(text, "text"), item(gone, "gone"))
    assert not answer.ok and "a (modify/delete)" in answer.error


@pytest.mark.parametrize("mode", MODES)
async def test_any_content_of_a_commit_survives_merging(repositories: Repositories, mode: str) -> None:
    work = begin(repositories)
    (work / "binary").write_bytes(bytes(range(256)) * 40)
    (work / "crlf").write_bytes(b"one\r\ntwo\r\n")
    (work / "link").symlink_to("binary")
    repositories.write("code", {"run": "#!/bin/sh\n", ".gitattributes": "crlf text=auto\n* filter=none\n"})
    run_git("-c", "core.autocrlf=false", "add", "-A", at=work)
    run_git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},sub", at=work)
    blob = run_git("hash-object", "-w", "--no-filters", "crlf", at=work)
    run_git("update-index", "--add", "--cacheinfo", f"100644,{blob},crlf", at=work)
    commit = committed(repositories, "odd")
    other = repositories.propose("code", "other", {"a": edited(l5="x")})
    state = await state_of(engine(repositories), item(other, "other", mode), item(commit, "odd", mode))
    made = engine(repositories).mirror(PROJECT, "local")
    await made.ready()
    listed = run_git("ls-tree", "-r", state.merged[PROJECT]["master"], at=made.path)
    proposed = run_git("ls-tree", "-r", commit, at=repositories.hub / "code")
    assert [x for x in listed.splitlines() if not x.endswith("\ta")] == [
        x for x in proposed.splitlines() if not x.endswith("\ta")
    ]
    tree = repositories.root / "tree"
    await engine(repositories).checkout(state, PROJECT, "master", tree)
    assert (tree / "binary").read_bytes() == bytes(range(256)) * 40 and os.readlink(tree / "link") == "binary"
    assert os.access(tree / "run", os.X_OK)


@pytest.mark.parametrize("mode", MODES)
async def test_a_merge_commit_of_a_change_keeps_edits_made_in_the_merge(repositories: Repositories, mode: str) -> None:
    work = begin(repositories)
    repositories.write("code", {"side": "side\n", "a": edited(l1="side")})
    run_git("commit", "-q", "-m", "side", at=work)
    side = run_git("rev-parse", "HEAD", at=work)
    begin(repositories)
    repositories.write("code", {"main": "main\n", "a": edited(l1="main")})
    run_git("commit", "-q", "-m", "main", at=work)
    run_git("merge", "-q", "-s", "ours", "--no-commit", side, at=work)
    repositories.write("code", {"side": "side\n", "a": edited(l1="both"), "evil": "made in the merge\n"})
    commit = committed(repositories, "merging")
    ahead = repositories.propose("code", "ahead", {"a": edited(l9="ahead")})
    state = await state_of(engine(repositories), item(ahead, "ahead", mode), item(commit, "merging", mode))
    tree = repositories.root / "tree"
    await engine(repositories).checkout(state, PROJECT, "master", tree)
    assert (tree / "a").read_text() == edited(l1="both", l9="ahead")
    assert {"side", "main", "evil"} <= {path.name for path in tree.iterdir()}


@pytest.mark.parametrize("mode", ["cherry-pick", "rebase"])
async def test_commits_that_were_empty_stay_and_those_that_become_empty_go(
    repositories: Repositories, mode: str
) -> None:
    begin(repositories)
    committed(repositories, "some", "Start the release")
    repositories.write("code", {"a": edited(l1="one")})
    committed(repositories, "some", "One")
    repositories.write("code", {"b": "new\n"})
    commit = committed(repositories, "some", "Two")
    same = repositories.propose("code", "same", {"a": edited(l1="one")}, "One, too")
    git = engine(repositories)
    state = await state_of(git, item(same, "same", mode), item(commit, "some", mode))
    path = git.mirror(PROJECT, "local").path
    log = run_git("log", "--format=%s %an", "--reverse", state.merged[PROJECT]["master"], at=path)
    assert log.splitlines() == ["Begin Ada", "One, too Ada", "Start the release Ada", "Two Ada"]


async def test_a_chain_extended_by_one_costs_one_merge(repositories: Repositories) -> None:
    commits = [repositories.propose("code", f"t{n}", {f"f{n}": "x\n"}) for n in range(4)]
    git = engine(repositories)
    for count in range(1, 5):
        await merged(git, *(item(commit, f"t{n}") for n, commit in enumerate(commits[:count])))
    assert git.mirror(PROJECT, "local").merges == 4


async def test_the_same_commit_with_another_message_is_another_merge(repositories: Repositories) -> None:
    commit = repositories.propose("code", "one", {"c": "x\n"})
    git = engine(repositories)
    for mode in ("merge", "squash-merge"):
        first = await state_of(git, item(commit, "one", mode, message="First"))
        other = await state_of(git, item(commit, "one", mode, message="Second"))
        assert first.merged != other.merged
    one, two = await state_of(git, item(commit, "one")), await state_of(git, item(commit, "two", message="one"))
    assert one.merged != two.merged


async def test_on_top_of_the_branch_nothing_is_merged_but_the_result_is_the_same(repositories: Repositories) -> None:
    commit = repositories.propose("code", "one", {"c": "x\n", "a": edited(l1="one")})
    git = engine(repositories)
    state = await state_of(git, item(commit, "one"))
    path = git.mirror(PROJECT, "local").path
    made = state.merged[PROJECT]["master"]
    assert run_git("rev-parse", f"{made}^{{tree}}", at=path) == run_git("rev-parse", f"{commit}^{{tree}}", at=path)
    assert run_git("rev-parse", f"{made}^1", f"{made}^2", at=path).split() == [repositories.head("code"), commit]
    again = await state_of(git, item(commit, "one"), item(commit, "one"))
    assert again.merged == state.merged, "what is there already is not merged again"


async def test_missing_commits_are_reported(repositories: Repositories) -> None:
    answer = await merged(engine(repositories), item("1" * 40, "ghost"))
    assert not answer.ok and "1" * 40 in answer.error
    nowhere = await merged(engine(repositories), item("1" * 40, "ghost", branch="nowhere"))
    assert not nowhere.ok and "has no branch nowhere" in nowhere.error
    gone = await engine(repositories).do(CatRequest("git.example/nowhere", "local"))
    assert isinstance(gone, CatAnswer) and not gone.ok and gone.error


async def test_very_many_objects_are_packed_and_nothing_goes(
    repositories: Repositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.adapters.git.mirror.LOOSE_MAX", 0)
    monkeypatch.setattr("headgate.adapters.git.mirror.TIDIED_EVERY", 2)
    commits = [repositories.propose("code", f"t{n}", {f"f{n}": "x\n"}) for n in range(3)]
    git = engine(repositories)
    state = await state_of(git, *(item(commit, f"t{n}") for n, commit in enumerate(commits)))
    path = git.mirror(PROJECT, "local").path
    assert not list((path / "objects").glob("[0-9a-f][0-9a-f]/*"))
    assert run_git("rev-list", "--count", "--objects", state.merged[PROJECT]["master"], at=path) == "16"


async def test_a_fetch_is_complete_or_leaves_nothing(repositories: Repositories) -> None:
    """If objects were unpacked one by one, a merge at that moment, or any merge after the fetch is killed, could see
    a commit before its files; git would treat missing files as deleted."""
    commits = [repositories.propose("code", f"t{n}", {f"f{n}": "x\n"}) for n in range(3)]
    git = engine(repositories)
    await state_of(git, *(item(commit, f"t{n}") for n, commit in enumerate(commits)))
    objects = git.mirror(PROJECT, "local").path / "objects"
    assert not [commit for commit in commits if (objects / commit[:2] / commit[2:]).exists()]


@pytest.mark.long
async def test_many_fetches_leave_few_packs(repositories: Repositories, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.adapters.git.mirror.PACKS_MAX", 4)
    monkeypatch.setattr("headgate.adapters.git.mirror.TIDIED_EVERY", 2)
    git = engine(repositories)
    for number in range(12):
        commit = repositories.propose("code", f"t{number}", {f"f{number}": "x\n"})
        state = await state_of(git, item(commit, f"t{number}"))
    path = git.mirror(PROJECT, "local").path
    assert len(list((path / "objects/pack").glob("*.pack"))) <= 6
    assert run_git("fsck", "--no-dangling", state.merged[PROJECT]["master"], at=path) == ""


async def test_configuration_is_read_of_the_default_branch_first(repositories: Repositories) -> None:
    work = repositories.work("code")
    repositories.propose("code", "one", {"zuul.yaml": "- job: {name: x}\n", "zuul.d/deep/a.yaml": "", "zuul.d/b": ""})
    run_git("push", "-q", "origin", "HEAD:refs/heads/zebra", at=work)
    run_git("symbolic-ref", "HEAD", "refs/heads/zebra", at=repositories.hub / "code")
    found = await engine(repositories).do(CatRequest(PROJECT, "local", paths=("zuul.yaml", "zuul.d/", "none/")))
    assert isinstance(found, CatAnswer) and list(found.branches) == ["zebra", "master"]
    assert found.files == {"zebra": {"zuul.yaml": "- job: {name: x}\n", "zuul.d/deep/a.yaml": ""}, "master": {}}


async def test_the_committer_of_merges_is_a_setting(repositories: Repositories) -> None:
    commit = repositories.propose("code", "one", {"c": "x\n"})
    git = GitEngine(repositories.root / "git", {"local": connection(repositories)}, b"Gate <gate@example.org>")
    state = await state_of(git, item(commit, "one"))
    path = git.mirror(PROJECT, "local").path
    people = run_git("log", "-1", "--format=%an <%ae> %cn", state.merged[PROJECT]["master"], at=path)
    assert people == "Gate <gate@example.org> Gate"
    assert run_git("fsck", "--strict", "--no-dangling", at=path) == ""


@pytest.mark.parametrize("mode", MODES)
async def test_a_git_that_is_broken_is_waited_for(
    repositories: Repositories, mode: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = repositories.propose("code", "one", {"a": edited(l1="one")})
    two = repositories.propose("code", "two", {"a": edited(l9="two")})
    chain, git = (item(one, "one", mode), item(two, "two", mode)), engine(repositories)
    for command, why in (("", f"{PROJECT} cannot be reached: out of order"), ("merge-tree", "here: out of order")):
        with failing(command, tmp_path / "bin", monkeypatch), pytest.raises(Unreachable, match=why):
            await merged(git, *chain)
    state = await state_of(git, *chain)
    other = engine(repositories, "other")
    with failing("merge-tree", tmp_path / "bin", monkeypatch), pytest.raises(Unreachable, match="here: out of order"):
        await landed(other, state, change(two, "two"))
    assert state == await state_of(other, *chain)


@contextmanager
def failing(command: str, at: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inside the context, git fails for commands that contain `command`."""
    real, fails = shutil.which("git"), f'case "$*" in *{command}*) echo out of order >&2; exit 129;; esac'
    at.mkdir(exist_ok=True)
    (at / "git").write_text(f'#!/bin/sh\n{fails}\nexec {real} "$@"\n')
    (at / "git").chmod(0o755)
    with monkeypatch.context() as there:
        there.setenv("PATH", f"{at}:{os.environ['PATH']}")
        yield


async def test_histories_that_have_nothing_in_common_do_not_merge(repositories: Repositories) -> None:
    work = begin(repositories)
    run_git("checkout", "-q", "--orphan", "alone", at=work)
    answer = await merged(engine(repositories), item(committed(repositories, "alone"), "alone"))
    assert not answer.ok and "unrelated histories" in answer.error


async def test_a_build_that_starts_after_the_change_ahead_landed_gets_the_tested_commit(
    repositories: Repositories,
) -> None:
    """The executor's copy has the head on which the changes were tested, and nothing that came later."""
    one = repositories.propose("code", "one", {"a": edited(l1="one")})
    two = repositories.propose("code", "two", {"a": edited(l9="two")})
    merger, executor = engine(repositories), engine(repositories, "executor")
    state = await state_of(merger, item(one, "one"), item(two, "two"))
    await executor.mirror(PROJECT, "local").bring({"refs/heads/master": repositories.head("code")})
    assert (await landed(merger, await state_of(merger, item(one, "one")), change(one, "one"))).ok
    assert "refs/for/master/one" not in refs(repositories)
    found = await executor.checkout(state, PROJECT, "master", repositories.root / "build")
    assert found.commit == state.merged[PROJECT]["master"]


async def test_a_lost_commit_is_reported_for_its_change(repositories: Repositories) -> None:
    answer = await merged(engine(repositories), item("1" * 40, "gone"))
    assert (answer.ok, answer.blame) == (False, "gone") and "is not in" in answer.error


@pytest.mark.parametrize("known", [True, False])
async def test_a_full_disk_of_the_merger_is_waited_for(
    repositories: Repositories, small_disk: Path, known: bool
) -> None:
    one = repositories.propose("code", "one", {"a": edited(l1="one")})
    two = repositories.propose("code", "two", {"a": edited(l9="two")})
    chain, git = (item(one, "one"), item(two, "two")), GitEngine(small_disk, {"local": connection(repositories)})
    if known:  # the objects are here, and only the merge must be written
        await git.mirror(PROJECT, "local").bring(
            {"refs/heads/master": repositories.head("code"), **{i.ref: i.commit for i in chain}}
        )
    rest = small_disk / "rest"
    with suppress(OSError), rest.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    with pytest.raises(Unreachable, match="No space left on device"):
        await merged(git, *chain)
    rest.unlink()
    assert (await merged(git, *chain)).ok


@pytest.mark.parametrize("kind", ["blob", "tree"])
async def test_a_branch_whose_configuration_is_damaged_is_named_in_the_answer(
    repositories: Repositories, kind: str
) -> None:
    commit, git = repositories.propose("code", "one", {"c": "x\n"}), engine(repositories)
    mirror = git.mirror(PROJECT, "local")
    await state_of(git, item(commit, "one"))
    put = mirror.repository.write
    below = b"100644 a.yaml\0" + bytes.fromhex("1" * 40)
    directory = str(put(ObjectType.TREE, below)) if kind == "blob" else "2" * 40
    tree = put(ObjectType.TREE, b"40000 zuul.d\0" + bytes.fromhex(directory))
    text = f"tree {tree}\nauthor A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n\nDamaged\n"
    damaged = str(put(ObjectType.COMMIT, text.encode()))
    bare = repositories.hub / "code"
    loose = Path("objects") / damaged[:2] / damaged[2:]
    (bare / loose).parent.mkdir(exist_ok=True)
    shutil.copy(mirror.path / loose, bare / loose)
    (bare / "refs/heads/old").write_text(f"{damaged}\n")
    answer = await git.do(reading("old", item(commit, "one")))
    assert isinstance(answer, MergeAnswer) and (answer.ok, answer.blame) == (False, "one")
    assert f"{PROJECT}: the configuration of the branch old cannot be read" in answer.error


async def test_a_branch_whose_head_cannot_be_fetched_is_named_after_repeated_attempts(
    repositories: Repositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, git = repositories.propose("code", "one", {"c": "x\n"}), engine(repositories)
    (repositories.hub / "code/refs/heads/old").write_text("1" * 40 + "\n")
    with pytest.raises(Unreachable, match="the configuration of the branch old cannot be read") as waits:
        await git.do(reading("old", item(commit, "one")))
    assert waits.value.project == PROJECT
    monkeypatch.setattr("headgate.adapters.git.fetch.SURE_AFTER", 1)
    answer = await git.do(reading("old", item(commit, "one")))
    assert isinstance(answer, MergeAnswer) and (answer.ok, answer.blame) == (False, "one")
    assert "the configuration of the branch old cannot be read" in answer.error


def reading(branch: str, *chain: MergeItem) -> MergeRequest:
    paths = {PROJECT: ("zuul.yaml", "zuul.d/")}
    return MergeRequest("b", chain, {PROJECT: "local"}, config_paths=paths, config_heads={PROJECT: (branch,)})


@pytest.mark.parametrize("mode", MODES)
async def test_the_answer_lists_the_paths_that_the_merge_of_each_change_of_the_item_changes(
    repositories: Repositories, mode: str
) -> None:
    """Changes ahead are not part of the item. Paths that are too many to list are unknown."""
    ahead = item(repositories.propose("code", "ahead", {"ahead": ""}), "ahead", mode)
    many = {f"many/{'x' * 200}{number}": "" for number in range(600)}
    files = {"one": {"a": edited(l1="one")}, "two": {"a": edited(l9="two"), "new": ""}, "many": many}
    commits = {topic: repositories.propose("code", topic, changed) for topic, changed in files.items()}
    own = [replace(item(commit, topic, mode), item="own") for topic, commit in commits.items()]
    answer = await merged(engine(repositories), ahead, *own)
    assert answer.ok and answer.touched == (("a",), ("a", "new"), None)


async def test_paths_of_changes_ahead_are_not_those_of_a_ref_or_of_a_landed_change(repositories: Repositories) -> None:
    ahead = item(repositories.propose("code", "ahead", {"ahead": ""}), "ahead")
    head, git = repositories.head("code"), engine(repositories)
    at = RefAt("own", PROJECT, "local", "refs/heads/master", head)
    for request in (
        MergeRequest("b", (ahead,), {PROJECT: "local"}, at=at),
        MergeRequest("b", (ahead,), {PROJECT: "local"}, landed=head),
    ):
        answer = await git.do(request)
        assert isinstance(answer, MergeAnswer) and answer.ok and answer.touched == ()
