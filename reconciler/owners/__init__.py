"""Whose pods may be evicted: the kinds of owners, and what their own policies say."""
