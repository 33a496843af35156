"""Make machines on demand, and delete them when nobody needs them."""
