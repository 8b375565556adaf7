"""How a container gets its share: by CDI, or by files that the answer to Allocate names."""
