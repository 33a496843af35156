"""Plain git: speculative merging in bare repositories, and a merge queue driven by `git push` alone."""
