"""Keep a build within bounds: system calls, files of the machine, memory, processes, disk."""
