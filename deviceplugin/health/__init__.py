"""Device health: which devices new containers may use."""
