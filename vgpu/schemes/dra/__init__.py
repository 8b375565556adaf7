"""Dynamic resource allocation (DRA) of Kubernetes, with any driver."""
