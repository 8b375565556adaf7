"""What the originals' schedulers serve beside their verbs: the gauges of ``--compat``; pure."""
