"""The connection to the API server: access, requests, watches, leader election."""
