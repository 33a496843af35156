"""Give builds networks: outbound to the world, never to this machine, the fleet or each other."""
