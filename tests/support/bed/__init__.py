"""A real Kubernetes for the tests, made of programs that this machine builds and runs itself."""
