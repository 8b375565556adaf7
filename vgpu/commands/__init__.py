"""Commands that belong to no single program."""
