"""Generated gRPC messages, and the .proto files they come from."""
