"""Drive plain git: merge speculatively in bare repositories, and run a merge queue by `git push` alone."""
