"""The reconciler's room: observe -> rules -> plan -> apply. Nothing lives here yet."""
