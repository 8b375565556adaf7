"""The verb bind: what decides, what is written, and how it ends."""
