"""What everything stands on: ids, clocks, errors for people, supervised tasks."""
