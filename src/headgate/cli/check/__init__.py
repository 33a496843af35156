"""`headgate check`: everything that is wrong with a configuration, before anybody is hurt by it."""
