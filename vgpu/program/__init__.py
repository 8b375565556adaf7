"""What every program is made of: flags, log, signals, web server, probes, own metrics, its end."""
