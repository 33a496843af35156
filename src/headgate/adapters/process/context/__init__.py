"""What a playbook has for itself."""
