"""Give Ansible the module of the action's name that it looks for; the action does the work."""

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: zuul_console
short_description: Asked for by base jobs to show the output of commands while they run, which happens anyway
options:
  path: {type: str, description: Has no effect.}
  port: {type: int, description: Has no effect.}
  state: {type: str, choices: [present, absent], description: Has no effect.}
"""


def main():
    AnsibleModule(
        argument_spec={"path": {}, "port": {"type": "int"}, "state": {"choices": ["present", "absent"]}}
    ).exit_json()


if __name__ == "__main__":
    main()
