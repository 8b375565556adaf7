"""Which devices new containers may use."""
