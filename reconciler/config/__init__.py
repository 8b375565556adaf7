"""The configuration: flags and file, their values, and the cron expressions in them."""
