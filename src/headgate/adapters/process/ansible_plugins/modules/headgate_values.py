"""Give Ansible the module of the action's name that it looks for; the action does the work."""

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: headgate_values
short_description: Evaluate the variables of a job
"""


def main():
    AnsibleModule(argument_spec={}).exit_json()


if __name__ == "__main__":
    main()
