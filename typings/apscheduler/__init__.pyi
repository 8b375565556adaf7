# The part of APScheduler 3 that is used here; the package has no types of its own.
