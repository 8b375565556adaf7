"""What the plugin does for each scheme; role.py is the Protocol that they speak."""
