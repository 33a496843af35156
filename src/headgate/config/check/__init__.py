"""What is wrong with a configuration as a whole: found, traced to its causes, and how far a change reaches."""
