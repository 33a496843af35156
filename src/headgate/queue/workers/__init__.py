"""Share the partitions of an application among its workers, and run jobs on the messages, in order."""
