"""The verbs of the extender: filter, prioritize, preempt and bind, with their JSON and events."""
