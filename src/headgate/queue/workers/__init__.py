"""Workers: they share the partitions of an application among them and run jobs on the messages, in order."""
