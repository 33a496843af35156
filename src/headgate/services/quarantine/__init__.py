"""What nobody can handle is set aside, and the rest goes on."""
