"""Run a real Gerrit from the two artifacts that it publishes for tests of plugins; together they are a complete server.

`make test` fetches them from Maven Central into the user's cache. A site is made once and copied for each server. Needs
Java 17 or newer and OpenSSH's `ssh-keygen`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from headgate.testing.servers.gerritpeople import ADMIN, PASSWORD, ReviewingPeople, ReviewingPerson
from headgate.testing.servers.program import Program, free_ports

PLACE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "headgate"
_LIST = Path(__file__).with_name("gerrit.txt")
JARS = tuple(
    PLACE / f"{'-'.join(line.partition('=')[0].split(':')[1:])}.jar"
    for line in _LIST.read_text().splitlines()
    if not line.startswith("#")
)
JAVA = ["java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
LAUNCHER = ["-cp", ":".join(map(str, JARS)), "com.google.gerrit.launcher.GerritLauncher"]
START_MAX_S = 300.0
INIT_MAX_S = 300.0
DUMP_MAX_S = 120.0
"""Time for the one-off dump of the server's classes when it ends."""
OLD_S = 86_400.0
"""Age at which sites of other versions of this module are deleted."""
CLASSES = "classes.jsa"
KEY = "key"
"""File in a site's directory: the private ssh key of `HEADGATE`; the public one is next to it."""
_LOG = """
log4j.rootLogger=WARN, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %c %m%n
"""
_ALWAYS = """
[gerrit]
    basePath = git
    serverId = 6c1f7c1e-0000-4000-8000-000000000001
[auth]
    type = DEVELOPMENT_BECOME_ANY_ACCOUNT
    gitBasicAuthPolicy = HTTP
[index]
    type = lucene
    threads = 1
    onlineUpgrade = false
[sendemail]
    enable = false
[plugins]
    checkFrequency = 0
[httpd]
    minThreads = 2
    requestLog = false
[sshd]
    threads = 4
    batchThreads = 2
    commandStartThreads = 1
    requestLog = false
    testUseInsecureRandom = true
[receive]
    threadPoolSize = 1
[execution]
    fanOutThreadPoolSize = 0
[change]
    submitWholeTopic = {whole_topics}
"""


def missing() -> str:
    """Return the prerequisites of Gerrit that this machine lacks, for people; empty: none."""
    if shutil.which("java") is None:
        return "Gerrit needs Java: install default-jre-headless"
    if shutil.which("ssh-keygen") is None:
        return "Gerrit needs host keys: install openssh-client"
    absent = [jar.name for jar in JARS if not jar.exists()]
    return f"Gerrit is not here: `make gerrit` fetches {' and '.join(absent)} into {PLACE}" if absent else ""


class LocalGerrit:
    """Run one server with its own site below `directory`. It keeps its ports after a restart."""

    def __init__(self, directory: Path, *, whole_topics: bool = False, java: Sequence[str] = ()) -> None:
        """Prepare a server; `java`: further options of the machine that runs it."""
        self.site = directory / "site"
        self.port, self.ssh_port = free_ports(2)
        self._whole_topics = whole_topics
        log = f"-Dlog4j.configuration=file:{self.site / 'etc' / 'log4j.properties'}"
        command = [*JAVA, *java, log, *LAUNCHER, "daemon", "-d", str(self.site), "--headless", "--show-stack-trace"]
        self.program = Program(command, directory / "run")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def key(self) -> Path:
        """Return the file with the private key of the account `headgate`."""
        return self.site / KEY

    @property
    def host_keys(self) -> list[str]:
        """Return the host keys as lines of `known_hosts`."""
        files = sorted((self.site / "etc").glob("ssh_host_*_key.pub"))
        return [f"[127.0.0.1]:{self.ssh_port} {' '.join(file.read_text().split()[:2])}" for file in files]

    def configure(self, options: Mapping[str, str] | None = None) -> None:
        """Write the configuration for the next start. `options`: further options, as `section.name`."""
        config = self.site / "etc" / "gerrit.config"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.with_name("log4j.properties").write_text(_LOG)
        config.write_text(_ALWAYS.format(whole_topics=str(self._whole_topics).lower()))
        settings = {
            "gerrit.canonicalWebUrl": f"{self.url}/",
            "httpd.listenUrl": f"{self.url}/",
            "sshd.listenAddress": f"127.0.0.1:{self.ssh_port}",
            "sshd.advertisedAddress": f"127.0.0.1:{self.ssh_port}",
        }
        for name, value in {**settings, **(options or {})}.items():
            subprocess.run(["git", "config", "-f", str(config), name, value], check=True)

    def start(self) -> None:
        """Wait until the server answers."""
        self.program.start()
        self.program.until(self.serves, START_MAX_S)

    def serves(self) -> bool:
        # Both ports and an answer: they come at different times.
        for port in (self.port, self.ssh_port):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)):
                    return False
        return ReviewingPerson(self.url, ADMIN, PASSWORD).finds("config/server/version")

    def stop(self) -> None:
        self.program.stop()


@contextmanager
def gerrit(directory: Path, *, whole_topics: bool = False, web_url: str = "") -> Iterator[LocalGerrit]:
    """Provide a server with the accounts of `reviewing`, ready.  Raise RuntimeError when there can be none.  `web_url`:
    where it says that people find it, if that is elsewhere."""
    if missing():
        raise RuntimeError(missing())
    made = _template()
    server = LocalGerrit(directory, whole_topics=whole_topics, java=[f"-XX:SharedArchiveFile={made / CLASSES}"])
    shutil.copytree(made / "site", server.site)
    server.configure({"gerrit.canonicalWebUrl": web_url} if web_url else None)
    try:
        server.start()
        yield server
    finally:
        server.program.kill()


def _template() -> Path:
    """Return a directory with a site that has accounts, labels and rights, and with classes as they are in memory,
    which halves the time of a start.  The first process makes it."""
    made_by = (Path(__file__), _LIST, Path(__file__).with_name("gerritpeople.py"))
    made = PLACE / f"gerrit-site-{hashlib.sha256(b''.join(file.read_bytes() for file in made_by)).hexdigest()[:12]}"
    # Several test processes start at the same time; the others wait while the first makes the site.
    with open(PLACE / "gerrit-site.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not made.exists():
            for old in PLACE.glob("gerrit-site-*"):
                # Not immediately: tests of another checkout may be using it.
                if old.is_dir() and time.time() - old.stat().st_mtime > OLD_S:
                    shutil.rmtree(old)
            work = PLACE / "gerrit-making"
            shutil.rmtree(work, ignore_errors=True)
            _make(work)
            # The rename is last, so an interrupted making leaves nothing under the final name.
            work.rename(made)
    return made


def _make(directory: Path) -> None:
    server = LocalGerrit(directory, java=[f"-XX:ArchiveClassesAtExit={directory / CLASSES}"])
    server.configure()
    line = [*JAVA, *LAUNCHER, "init", "-d", str(server.site), "--batch", "--dev", "--no-auto-start", "--skip-plugins"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=INIT_MAX_S)
    if done.returncode:
        raise RuntimeError(f"Gerrit cannot make a site: {(done.stderr or done.stdout)[-2000:]}")
    server.configure()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(server.key)], check=True)
    try:
        server.start()
        ReviewingPeople(server.url).settle(server.key.with_suffix(".pub").read_text())
        # Java writes the archive of classes only when it ends in an orderly way.
        server.program.stop(DUMP_MAX_S)
    finally:
        server.program.kill()
    shutil.rmtree(directory / "run")
    for leftover in ("logs", "tmp"):
        shutil.rmtree(server.site / leftover, ignore_errors=True)
