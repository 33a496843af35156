"""Drive GitHub, on github.com and Enterprise Server."""
