"""Give builds networks, with access to the outside, but not to this machine, the fleet or each other."""
