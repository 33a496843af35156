"""Keep processes that have already imported Ansible, so that each playbook can start as a copy of one."""
