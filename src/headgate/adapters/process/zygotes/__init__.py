"""Keep Ansible warm: processes that have imported it already, and that each playbook is a copy of."""
