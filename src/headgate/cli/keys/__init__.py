"""Keys of projects, and encrypting with them."""
