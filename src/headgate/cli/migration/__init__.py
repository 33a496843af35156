"""Moving in from the reference: the effect of its `zuul.conf` here."""
