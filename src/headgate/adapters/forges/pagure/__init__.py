"""Drive Pagure: pull requests, flags, thumbs, merging."""
