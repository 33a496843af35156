"""Files and variables of a playbook's own."""
