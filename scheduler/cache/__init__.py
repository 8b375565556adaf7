"""The cache of the scheduler: its decisions, what keeps it up to date, and predictions on it."""
