"""Who somebody is, by what they show."""
