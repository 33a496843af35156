"""Install versions of Ansible beside Headgate, each with its own Python, for the jobs that ask for them."""
