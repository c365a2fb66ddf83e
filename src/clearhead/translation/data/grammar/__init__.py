"""A grammar that writes English sentences with their Japanese translations."""
