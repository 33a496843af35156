"""What keeps builds apart: a user, a network and a view of the files for each."""
