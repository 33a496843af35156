"""etcd as a store, through a client of our own."""
