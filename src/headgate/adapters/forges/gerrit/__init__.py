"""Drive Gerrit: changes, patch sets, votes and submit requirements, over REST and `stream-events`."""
