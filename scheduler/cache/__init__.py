"""The cache of the scheduler: its decisions, and what keeps it up to date."""
