"""The command line: one folder or file a command."""

DISTRIBUTION = "vgpu"
