"""Who the servers let in, and what the commands show them."""
