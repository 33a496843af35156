"""`headgate check`: find everything that is wrong with a configuration before it is in use."""
