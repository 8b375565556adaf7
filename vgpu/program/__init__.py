"""The parts of every program: flags, log, signals, web server, probes, own metrics, its end."""
