"""The embedded simulated node: cards, containers, real-format files, faults."""
