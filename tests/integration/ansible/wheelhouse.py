"""Provide a directory of packages in place of those of an Ansible version, and the list that names them."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

PROGRAM = """#!python
import sys
print("stand-in {version}", sys.prefix)
"""


class Wheelhouse:
    """The only package is called ansible-core and has one program, ansible-playbook."""

    def __init__(self, root: Path) -> None:
        self.files, self.locks = root / "wheels", root / "locks"
        self.files.mkdir()
        self.locks.mkdir()

    def offers(self, version: str, core: str) -> Path:
        """Build its package, and name it in the list of the version."""
        program = {f"ansible_core-{core}.data/scripts/ansible-playbook": PROGRAM.format(version=core)}
        wheel = self.makes("ansible-core", core, {"ansible/__init__.py": "\n", **program})
        self.names(version, core, hashlib.sha256(wheel.read_bytes()).hexdigest())
        return wheel

    def makes(self, package: str, version: str, content: dict[str, str], needs: str = "") -> Path:
        """Build a wheel of files; `needs` is a requirement of it."""
        name = package.replace("-", "_")
        wheel = self.files / f"{name}-{version}-py3-none-any.whl"
        info = f"{name}-{version}.dist-info"
        required = f"Requires-Dist: {needs}\n" if needs else ""
        files = {
            **content,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n{required}",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, text in {**files, f"{info}/RECORD": record}.items():
                member = zipfile.ZipInfo(name)
                member.external_attr = 0o100755 << 16
                archive.writestr(member, text)
        return wheel

    def names(self, version: str, core: str, digest: str) -> None:
        text = f"ansible-core=={core} \\\n    --hash=sha256:{digest}\n"
        (self.locks / f"{version}.txt").write_text(text)
