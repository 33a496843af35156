"""Import Ansible once in a process without data of any build, and run playbooks in copies of it.

The process is a keeper (see `supervisor`) that uses the Python of an installed Ansible.  Only the supervisors that it
forks read the data of playbooks: the zygote itself has only the socket for requests.  Arguments: the descriptor of that
socket, a descriptor for the line with its report, the program, and the settings with which to import Ansible.

Ansible reads its settings while it is imported.  So it is imported with settings that have all of Headgate's values,
but name a directory that was made only for this (`load`); the copy reads the settings of its own playbook (`_reread`).
Each start checks whether any trace of the first settings is left (`stale_traces`): no copy runs a playbook with a
version of Ansible that stores its settings elsewhere.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import multiprocessing.process
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import threading
import traceback
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headgate.adapters.process import supervisor
from headgate.adapters.process.zygotes import entry

Marks = list[list[Any]]
"""Path, size, modification time and inode of each file and directory. JSON."""
CONFIG_VARIABLE, HOME_VARIABLE = "ANSIBLE_CONFIG", "ANSIBLE_HOME"
_SHOWN_MAX = 200
_DRAWN_BYTES = 48
_FOR_PEOPLE = "Origin"
"""Tag in newer versions of Ansible with the file in which a value was set; only messages use it."""
NOWHERE = "/nonexistent"
"""Placeholder for the real directory in the settings."""
_EARLY = (
    "ansible.executor.playbook_executor", "ansible.executor.process.worker", "ansible.executor.task_executor",
    "ansible.executor.task_queue_manager", "ansible.inventory.manager", "ansible.module_utils.connection",
    "ansible.playbook.handler_task_include", "ansible.playbook.included_file", "ansible.playbook.play",
    "ansible.playbook.role_include", "ansible.plugins.action", "ansible.plugins.cache", "ansible.plugins.callback",
    "ansible.plugins.connection", "ansible.plugins.inventory", "ansible.plugins.shell", "ansible.plugins.strategy",
    "ansible.plugins.vars", "ansible.utils.hashing", "ansible.utils.shlex", "ansible.vars.manager", "cmd",
    "http.client", "multiprocessing.popen_fork", "multiprocessing.synchronize", "pprint", "pty", "ssl", "tomllib",
    "urllib.request", "xml.dom.minidom", "xml.etree.ElementTree",
)  # fmt: skip
"""Modules that every playbook imports. Plugins are missing, since a job may have a plugin of the same name."""


def main() -> None:
    requests, says, program, config = sys.argv[1:]
    report: dict[str, Any] = {"marks": marks([program, sys.executable, *sys.path])}  # JSON
    try:
        report["cold"] = _warmed(config)
    except Exception as error:
        report["cold"] = f"Ansible cannot be imported: {type(error).__name__}: {error}"
    with open(int(says), "w") as line:
        json.dump(report, line)
    if report["cold"]:
        return
    with socket.socket(fileno=int(requests)) as requests_socket:
        supervisor.keeper(requests_socket, functools.partial(entry.start, run=run))


def _warmed(config: str) -> str:
    """Return why no copy of this process can run a playbook; empty if one can."""
    gc.disable()  # while many permanent objects are created
    place = load(config)
    for trace in (stale_traces(place, config), shared_memory()):
        if trace:
            return trace
    if threading.active_count() > 1 or len(os.listdir("/proc/self/task")) > 1:
        return "importing Ansible starts threads"
    gc.collect()
    gc.freeze()  # so that copies share memory that they do not modify
    gc.enable()
    return ""


def marks(paths: Iterable[str]) -> Marks:
    """Return marks that change with an installation: adding or removing a package changes its directory."""
    found = []
    for path in paths:
        try:
            about = os.stat(path)
        except OSError:
            continue
        found.append([path, about.st_size, about.st_mtime_ns, about.st_ino])
    return found


def load(config: str) -> str:
    """Import Ansible with these settings; return the directory that they named, which is then removed. Raise the errors
    of the import."""
    place = tempfile.mkdtemp(prefix="headgate-zygote-")
    # Ansible puts the node into the ids of its tasks.
    node = uuid.getnode
    uuid.getnode = lambda: random.SystemRandom().getrandbits(48) | 1 << 40  # not an address of this machine
    try:
        _lay(place, config)
        importlib.import_module("ansible.cli.playbook")
        for name in _EARLY:
            with contextlib.suppress(ImportError):  # other versions have other modules
                importlib.import_module(name)
        _parse_own_metadata()
        _forget_temporary_files()
        _locks().clear()
    finally:
        uuid.getnode = node
        os.chdir("/")
        # Without the directory, a setting that still points there causes an error in a copy, instead of leading to
        # somebody else's files.
        shutil.rmtree(place, ignore_errors=True)
        for name in (CONFIG_VARIABLE, HOME_VARIABLE, "HOME"):
            os.environ.pop(name, None)
    return place


def _parse_own_metadata() -> None:
    """Parse the metadata of Ansible's own plugins for all copies: every playbook needs them, and parsing takes 50 ms.
    Copies parse them if this version of Ansible reads them otherwise."""
    finder = importlib.import_module("ansible.utils.collection_loader._collection_finder")
    parse, ansible = getattr(finder, "_meta_yml_to_dict", None), importlib.import_module("ansible")
    path = Path(str(ansible.__file__)).parent / "config" / "ansible_builtin_runtime.yml"
    if parse is None or not path.exists():
        return
    own = path.read_bytes()
    parsed = parse(own, (str(path), "runtime.yml"))

    def metadata(text: bytes | str, content: tuple[str, str]) -> Any:  # YAML
        return parsed if text == own else parse(text, content)

    # Ansible looks up the function in its module for each call, since some programs replace it.
    vars(finder)["_meta_yml_to_dict"] = metadata


def _lay(place: str, config: str) -> None:
    for name in ("home", "here"):
        Path(place, name).mkdir()
    os.chdir(f"{place}/here")
    path = Path(place, "ansible.cfg")
    path.write_text(config.replace(NOWHERE, place))
    os.environ |= {CONFIG_VARIABLE: str(path), HOME_VARIABLE: f"{place}/.ansible", "HOME": f"{place}/home"}


def stale_traces(place: str, config: str) -> str:
    """Return the traces of the import's settings that a copy of this process would still have; empty if there are none.
    Raise OSError."""
    reader, writer = os.pipe()
    # Check this in a child, because becoming a playbook cannot be undone.
    child = os.fork()
    if child == 0:
        os.close(reader)
        words = "the settings cannot be read again"
        try:
            words = _left(place, config)
        except Exception as error:
            words = f"{words}: {type(error).__name__}: {error}"
        finally:
            os.write(writer, words.encode()[:4_000])
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as source:
        words = source.read().decode(errors="replace")
    status = os.waitpid(child, 0)[1]
    return words or (f"a copy ended with status {status}" if status else "")


def _left(place: str, config: str) -> str:
    if shared := shared_memory():
        return f"it would share memory with its copies: {shared}"
    with tempfile.TemporaryDirectory() as other:
        path = Path(other, "ansible.cfg")
        path.write_text(config.replace(NOWHERE, other))
        _be(["ansible-playbook"], {CONFIG_VARIABLE: str(path), HOME_VARIABLE: f"{other}/.ansible", "HOME": other})
        gc.collect()
        for holder, text in _texts():
            # The path alone is the argument of this check itself.
            if place in text and text != place and holder != _FOR_PEOPLE:
                return f"Ansible still has {text[:_SHOWN_MAX]!r}, from replaced settings, in {holder}"
        _forget_temporary_files(run=True)
    return ""


def _texts() -> Iterator[tuple[str, str]]:
    """Yield every string that is reachable in this process, and the type of its holder."""
    seen = set[int]()
    left = gc.get_objects()
    left_ids = {id(one) for one in left}
    while left:
        holder = left.pop()
        for one in gc.get_referents(holder):
            if isinstance(one, str | bytes):
                text = str.__str__(one) if isinstance(one, str) else one.decode(errors="replace")
                yield type(holder).__name__, text
            # The collector does not list objects that it does not track, such as tuples of strings: find them through
            # their holders.
            elif not gc.is_tracked(one) and id(one) not in seen and id(one) not in left_ids:
                seen.add(id(one))
                left.append(one)


def _forget_temporary_files(*, run: bool = False) -> None:
    """Unregister Ansible's exit function that removes the directory that it makes while it reads its settings: Headgate
    removes it.  With `run`, run all exit functions first."""
    from ansible.utils.path import cleanup_tmp_file  # type: ignore[import-untyped]

    if run:
        atexit._run_exitfuncs()
    atexit.unregister(cleanup_tmp_file)


def run(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a playbook like `ansible-playbook`, in a copy of the process that loaded Ansible; return the exit status."""
    status: Any = 1
    try:
        _be(arguments, environment)
        from ansible.cli.playbook import main  # type: ignore[import-untyped]

        status = main()
    except SystemExit as exited:
        status = exited.code
    except BaseException:
        traceback.print_exc()
    if isinstance(status, str):
        print(status, file=sys.stderr)
        status = 1
    with contextlib.suppress(Exception):
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the interpreter does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return 0 if status is None else int(status) & 0xFF


def _be(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Set up everything that a new process would have: its own random values and settings, instead of those of the
    copied process."""
    os.environ.clear()
    os.environ |= environment
    for name in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(name, signal.SIG_DFL)
    sys.argv = list(arguments)
    # Python does the same when it starts a script.
    sys.path.insert(0, str(Path(arguments[0]).parent))
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in environment
    # Drop the cached value from the zygote's TMPDIR; a copy has its own.
    tempfile.tempdir = None
    _renew_random_sources()
    # Otherwise all copies would share the key that gives access to each other's worker connections.
    key = multiprocessing.process.AuthenticationString(os.urandom(32))  # type: ignore[attr-defined]
    multiprocessing.process.current_process().authkey = key
    _locks(remake=True)
    _reread()


def _renew_random_sources() -> None:
    """Renew the random sources of temporary file names and of OpenSSL. Both renew themselves when the process id
    changes, but a copy in its own process namespace may have the id of its original."""
    tempfile._name_sequence = None  # type: ignore[attr-defined]
    semaphores = sys.modules.get("multiprocessing.synchronize")
    if semaphores is not None:
        semaphores.SemLock._rand = tempfile._RandomNameSequence()  # type: ignore[attr-defined]
    crypto = sys.modules.get("ssl")
    if crypto is not None:
        crypto.RAND_add(os.urandom(_DRAWN_BYTES), float(_DRAWN_BYTES))


def _reread() -> None:
    from ansible import constants  # type: ignore[import-untyped]
    from ansible.config.manager import find_ini_config_file  # type: ignore[import-untyped]

    config = constants.config
    config._parsers.clear()
    config._config_file = find_ini_config_file(config.WARNINGS)
    config._parse_config_file()
    # Only newer versions cache the values.
    if forget := getattr(getattr(config, "_get_ini_config_value", None), "cache_clear", None):
        forget()
    known = vars(constants)
    before = {name: known.get(name) for name in config.get_configuration_definitions()}
    for name in before:
        known[name] = config.get_config_value(name, variables=known)
    # Loaders hold the list objects of the settings, so the identity of a list shows to which setting it belongs.
    _rebind({id(value): known[name] for name, value in before.items() if isinstance(value, list)})
    _unlike_others()


def _rebind(lists: Mapping[int, Any]) -> None:
    """Give plugin loaders the new search paths, and clear their caches; `lists` maps the `id()` of each setting's old
    value to the new value."""
    loader = importlib.import_module("ansible.plugins.loader")
    for one in vars(loader).values():
        if isinstance(one, loader.PluginLoader):
            one.config = lists.get(id(one.config), one.config)
            one._clear_caches()
            one._searched_paths.clear()


def shared_memory() -> str:
    """Return the shared writable memory of this process, through which its copies could write to each other."""
    with open("/proc/self/maps") as maps:
        # A shared mapping survives a fork. Semaphores of multiprocessing are shared mappings, with which one copy
        # could block all others.
        return " ".join(line.split()[-1] for line in maps if line.split()[1].startswith("rw-s"))


def _locks(*, remake: bool = False) -> Any:
    """Return the locks that the workers of a playbook share, or none if this version of Ansible has no such locks.
    Older versions create them while they are imported; with `remake`, create them again."""
    try:
        module = importlib.import_module("ansible.executor.action_write_locks")
    except ImportError:
        return {}
    found: dict[str | None, Any] = module.action_write_locks
    if remake:
        del vars(module)["action_write_locks"]  # the module creates locks only if it has none
        found.update(importlib.reload(module).action_write_locks)
        vars(module)["action_write_locks"] = found  # other modules may already refer to it
    return found


def _unlike_others() -> None:
    """Set random ids of tasks, and the name of the user, which Ansible itself does only while it is imported."""
    from ansible.utils import display, vars  # type: ignore[import-untyped]

    if hasattr(vars, "random_int"):
        chance = random.SystemRandom()
        vars.node_mac, vars.random_int = f"{chance.getrandbits(48) | 1 << 40:012x}", f"{chance.getrandbits(32):08x}"
    who = getattr(display, "FilterUserInjector", None)
    if who is not None and hasattr(who, "username"):
        import getpass

        try:
            who.username = getpass.getuser()
        except (KeyError, OSError):
            who.username = f"uid={os.getuid()}"
