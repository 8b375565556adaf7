"""How a container gets its share: by CDI, or by files that are named in the answer."""
