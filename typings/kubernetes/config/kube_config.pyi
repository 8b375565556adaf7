# The module that it starts programs with.
subprocess: object
