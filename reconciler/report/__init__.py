"""A plan and its results for people and for programs."""
