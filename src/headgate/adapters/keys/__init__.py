"""Keep the keys of projects, and encrypt with them."""
