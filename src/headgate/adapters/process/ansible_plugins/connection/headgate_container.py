"""Connect to the container of the build: run commands over this playbook's socket, and copy files with commands."""

import os
import shlex
import sys
import tempfile
from pathlib import Path

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.connection import ConnectionBase

# Append instead of insert: no module in this directory may hide one of Ansible's own.
sys.path.append(str(Path(__file__).parents[1]))

import headgate_commands

DOCUMENTATION = """
name: headgate_container
short_description: Commands in the container of the build
description: Connects to the container that runs the job's image, which is one of the hosts of its playbooks.
options:
  remote_user:
    description: The user as whom commands run; any user of the container.
    default: root
    keyword: [{name: remote_user}]
    vars: [{name: ansible_user}]
  pipelining:
    description: Modules are passed as input, without creating files for them.
    type: boolean
    default: true
    vars: [{name: ansible_pipelining}]
"""
BECOMES = ": becomes "
"""Prefix of a line that names the user as whom the next command runs."""
OUTPUT_SIZE_MAX_BYTES = 100_000_000
"""Size of one command's output, which Ansible holds in memory."""


class Connection(ConnectionBase):
    transport = "headgate_container"
    has_pipelining = True
    allow_executable = False  # a shell runs every command anyway

    def _connect(self):
        self._connected = True
        return self

    def close(self):
        self._connected = False

    def set_become_plugin(self, plugin):
        """Start commands as the user they become, whatever the method, so that no setuid program has to help."""
        if plugin is not None:

            def build(command, shell):
                # Ansible would wait for the prompt and the marker of a become program, which does not run here.
                plugin._id = plugin.success = plugin.prompt = ""
                return (
                    f"{BECOMES}{shlex.quote(plugin.get_option('become_user') or 'root')}\n{command}"
                    if command
                    else command
                )

            plugin.build_become_command = build
        super().set_become_plugin(plugin)

    def exec_command(self, cmd, in_data=None, sudoable=True):
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        out, err = _CapturedOutput(), _CapturedOutput()
        # Use a file, since `run` reads its input from a descriptor while it reads the output: a pipe could deadlock.
        with tempfile.TemporaryFile() as source:
            source.write(in_data or b"")
            source.seek(0)
            status = self._run(cmd, out.add, err.add, source.fileno())
        return status, bytes(out.text), bytes(err.text)

    def put_file(self, in_path, out_path):
        super().put_file(in_path, out_path)
        err = _CapturedOutput()
        with open(in_path, "rb") as source:
            status = self._run(f"cat > {shlex.quote(out_path)}", lambda chunk: None, err.add, source.fileno())
        if status:
            raise AnsibleError(f"{out_path} cannot be written in the container: {err.one_line}")

    def fetch_file(self, in_path, out_path):
        super().fetch_file(in_path, out_path)
        err = _CapturedOutput()
        with open(out_path, "wb") as file:
            status = self._run(f"cat < {shlex.quote(in_path)}", file.write, err.add)
        if status:
            os.unlink(out_path)
            raise AnsibleError(f"{in_path} cannot be read in the container: {err.one_line}")

    def _run(self, command, output, errors, source=None):
        user = self.get_option("remote_user") or "root"
        if command.startswith(BECOMES):
            line, _, command = command.partition("\n")
            user = shlex.split(line.removeprefix(BECOMES))[0]
        try:
            return headgate_commands.run(command, user, output, errors, source)
        except headgate_commands.Gone as gone:
            raise AnsibleConnectionFailure(str(gone)) from gone
        except headgate_commands.Refused as refused:
            raise AnsibleError(f"the command cannot be run in the container: {refused}") from refused


class _CapturedOutput:
    """Hold the output of a command, up to a limit."""

    def __init__(self):
        self.text = bytearray()

    def add(self, chunk):
        self.text += chunk
        # The container is hostile, and this memory counts for Ansible's sandbox.
        if len(self.text) > OUTPUT_SIZE_MAX_BYTES:
            raise AnsibleError(f"a command in the container printed more than {OUTPUT_SIZE_MAX_BYTES // 1_000_000} MB")

    @property
    def one_line(self):
        return " ".join(self.text.decode(errors="replace").split())[:1_000]
