"""Who holds what when the plugin starts: all sources read, merged and saved."""
