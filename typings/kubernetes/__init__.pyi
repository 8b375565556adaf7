# The part of the official client that is used here; the package has no types of its own.
