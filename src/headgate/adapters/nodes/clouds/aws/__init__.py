"""Drive AWS EC2."""
