"""Provide the module that Ansible requires for each action; the action does the work."""

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: zuul_return
short_description: Return data from a job
options:
  data: {type: dict, description: The data.}
  file: {type: path, description: JSON file with data.}
  secret_data: {type: dict, description: Data only for jobs that depend on this one.}
  secret_file: {type: path, description: JSON file with secret data.}
  path: {type: path, description: Where results are stored.}
"""


def main():
    AnsibleModule(
        argument_spec={
            "data": {"type": "dict"},
            "file": {"type": "path"},
            "secret_data": {"type": "dict", "no_log": True},
            "secret_file": {"type": "path"},
            "path": {"type": "path"},
        }
    ).exit_json()


if __name__ == "__main__":
    main()
