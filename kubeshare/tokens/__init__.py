"""The token daemon of a node: the time and memory of GPUs, for pods with Gemini's hook."""
