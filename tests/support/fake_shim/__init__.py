"""A stand-in for HAMi-core's library, and programs that load it or do not."""
