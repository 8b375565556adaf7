"""Which container gets which share: Allocate, the binder behind it, PreStartContainer."""
