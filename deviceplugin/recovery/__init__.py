"""Finds out who holds what when the plugin starts: reads, merges and saves all sources."""
