"""What the API server has shown of the cluster, and the reservations beside it; pure."""
