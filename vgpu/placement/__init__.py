"""Where a request goes: each scheduler's arithmetic as pure functions on plain frozen values."""
