"""Test that only `adapters/work` touches files that a job can write.

Elsewhere in the executor's code, every call that touches a file is in this list, with the reason why no job controls
that file.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "headgate"
EXECUTOR = (
    *sorted(p for p in (SOURCE / "adapters/process").rglob("*.py") if "ansible_plugins" not in p.parts),
    SOURCE / "adapters/git/worktree.py",
    SOURCE / "services/executor.py",
    SOURCE / "services/contact.py",
)
TOUCHES = {
    "open", "read_text", "read_bytes", "write_text", "write_bytes", "exists", "is_file", "is_dir", "is_symlink",
    "is_fifo", "stat", "lstat", "iterdir", "glob", "rglob", "walk", "fwalk", "scandir", "listdir", "unlink", "mkdir",
    "makedirs", "rmdir", "touch", "symlink_to", "hardlink_to", "readlink", "resolve", "chmod", "chown", "lchmod",
    "rename", "copy", "copy2", "copyfile", "copytree", "move", "rmtree", "samefile", "access", "truncate",
    "write_private", "link", "symlink", "mkfifo", "utime", "islink", "isdir", "isfile",
}  # fmt: skip
NOT_OF_JOBS = {
    "adapters/git/worktree.py": {"_begin": "the tree is made before anything of the build runs"},
    "adapters/process/ansible.py": {
        **dict.fromkeys(("_command", "_tell"), "beside the work directory: a job can read it only"),
        "command": "beside the work directory: a job can read it only",
    },
    "adapters/process/bounds/watch.py": {
        "_deleted": "/proc",
        "_written_bytes": "/proc",
        "measured": "the directory of the build, which no job can rename; what is below is measured by du",
    },
    "adapters/process/bounds/limits.py": {
        **dict.fromkeys(("_begun", "_handed_down", "_parent", "_text", "_write"), "the file system of control groups"),
        **dict.fromkeys(("_emptied", "_removed", "_sweep"), "the file system of control groups"),
        **dict.fromkeys(("close", "make", "removed"), "the file system of control groups"),
    },
    "adapters/process/bounds/machine.py": {
        **dict.fromkeys(("_itself", "_resolvers", "copied"), "/etc"),
        "interpreter": "Headgate's own installation",
        "kernel": "/proc",
        "mounts": "the machine's own directories",
    },
    "adapters/process/access.py": {
        "opened": "a directory that is made before anything of the build runs",
    },
    "adapters/process/confinement/boxes.py": {
        "_hold": "one name at a time, where no link is followed and no process of the build runs",
        "_mount_root": "directories of the executor's own",
        "_step": "one name at a time, where no link is followed",
        "_write": "in a directory that is held, in the place of what was there",
        "_lines": "inside the container, without following a link",
        "enter": "directories that are mounted, which no job can rename",
    },
    "adapters/process/confinement/server.py": {
        "__init__": "a directory beside the work directory: a job can read it only",
        "_look": "/proc",
    },
    "adapters/process/containers/box.py": {
        "_bound": "directories of the build that no job can rename, and what the settings name",
        "_covers": "what the settings name",
        "prepare": "beside the work directory: a job has it as what it writes into only",
    },
    "adapters/process/imagebuild.py": {
        **dict.fromkeys(("_check", "_files"), "the proposed tree, before anything of the build runs"),
        **dict.fromkeys(("_changed_s", "begin", "has", "keep"), "no job has the images"),
    },
    "adapters/process/containers/podman.py": dict.fromkeys(
        ("_listed", "_move", "_write", "take_out_orphans"), "no job has the images"
    ),
    "adapters/process/containers/store.py": {
        **dict.fromkeys(
            ("_layers", "_set_aside", "_remove", "_tidy", "_touched_s", "begin"),
            "no job has the store of images",
        ),
    },
    "adapters/process/cell.py": {
        "_as_root": "/proc",
        "_chown": "directories of the build that no job can rename; by a program that follows no links",
        "_run": "a directory beside the work directory: a job can read it only",
    },
    "adapters/process/confinement/errands.py": {"_net_namespace": "/proc", "_user_namespace": "/proc"},
    "adapters/process/confinement/users.py": {"_idle": "/proc", "_lines": "/etc"},
    "adapters/process/context/hostvars.py": {"offer": "a directory that is made before its playbook can write in it"},
    "adapters/process/context/places.py": {
        "of": "directories are made before a job can write in them",
        "offer_roles": "in a tree of playbooks: a job can read them only",
    },
    "adapters/process/joboutput.py": dict.fromkeys(
        ("_listed", "_write", "write_inventory", "write_manifest"), "among the kept logs: a job can read them only"
    ),
    "adapters/process/network/veth.py": dict.fromkeys(
        ("_forwarding", "keep_listening", "listen_as_before", "on", "turn"), "/proc"
    ),
    "adapters/process/network/networks.py": {"_resolv": "/etc", "begin": "/dev"},
    "adapters/process/phases.py": {"_executable": "in a tree of playbooks: a job can read them only"},
    "adapters/process/processes.py": {"processes_of": "/proc"},
    "adapters/process/returns.py": {"parse": "inside of a job, with its rights"},
    "adapters/process/runner.py": {
        "_hold": "the directory of the build, which no job can rename or write",
        "_logged": "among the kept logs: a job can read them only",
        "sweep": "the directory of all builds",
    },
    "adapters/process/sandbox.py": {"_covered": "places of the settings"},
    "adapters/process/supervisor.py": {
        "_children": "/proc",
        "_kill_group": "the file system of control groups",
        "_supervisor": "the file system of control groups",
    },
    "adapters/process/joblog.py": dict.fromkeys(("__init__", "_read"), "among the kept logs: a job can read them only"),
    "adapters/process/variables.py": {"included": "in a tree of playbooks: a job can read them only"},
    "adapters/process/workspace.py": {
        "_included": "in a tree of playbooks: a job can read them only",
        "_own": "beside the work directory: a job can read it only",
        "forget": "beside the work directory: a job can read it only",
        "prepare": "the work directory is made before anything of the build runs; and among the kept logs",
        "stage": "in a tree of playbooks, and beside the work directory: a job can read them only",
        "write_variables": "beside the work directory: a job can read it only",
    },
    "adapters/process/zygotes/entry.py": {
        **dict.fromkeys(
            ("_begin", "_copied", "_identity", "_text", "of", "to"), "/proc or a pipe, before anything of it runs"
        ),
    },
    "adapters/process/zygotes/pool.py": {"interpreter": "a program of the machine, which no job can write"},
    "adapters/process/zygotes/program.py": {
        **dict.fromkeys(("_lay", "_left", "load"), "a directory of the zygote, which no sandbox has"),
        **dict.fromkeys(("shared_memory", "stale_traces"), "/proc, and a pipe"),
        "_parse_own_metadata": "the installation of Ansible, which no job can write",
        "_warmed": "/proc",
        "main": "a pipe",
        "marks": "programs and packages of the machine, which no job can write",
    },
}
"""Module -> function that touches files by path -> why no job can write what it touches."""


def touching(path: Path) -> set[str]:
    """Functions with calls that touch files."""
    found = set()
    for function in ast.walk(ast.parse(path.read_text())):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and _name(node.func) in TOUCHES:
                found.add(function.name)
    return found


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return "rename" if ast.unparse(function) == "os.replace" else function.attr
    return function.id if isinstance(function, ast.Name) else ""


def test_only_one_package_opens_files_that_a_job_can_write() -> None:
    found = {(str(path.relative_to(SOURCE)), function) for path in EXECUTOR for function in touching(path)}
    known = {(name, function) for name, functions in NOT_OF_JOBS.items() for function in functions}
    assert not found - known, "use adapters/work, or say above why no job can write what is touched"
    assert not known - found, "the list names what touches nothing any more"


def test_git_of_headgate_never_runs_in_a_job_s_repository() -> None:
    """Configuration, hooks and attributes that a job writes name programs: only jobs run git on what they wrote."""
    users = {
        str(p.relative_to(SOURCE)) for p in EXECUTOR if "adapters.git" in p.read_text() or "pygit2" in p.read_text()
    }
    assert users == {"adapters/git/worktree.py"}, "it makes trees, before anything of the build runs"
