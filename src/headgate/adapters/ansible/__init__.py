"""Install versions of Ansible alongside Headgate, each with its own Python, for the jobs that ask for them."""
