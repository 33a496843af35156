"""Provide the module that Ansible requires for each action; the action does the work."""

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: headgate_values
short_description: Evaluate the variables of a job
"""


def main():
    AnsibleModule(argument_spec={}).exit_json()


if __name__ == "__main__":
    main()
