"""What is said to etcd and what it answers."""
