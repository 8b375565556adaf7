"""Whose pods may be evicted: the kinds of owners, and their own policies."""
