"""Moving in from the reference: what its `zuul.conf` comes to here."""
