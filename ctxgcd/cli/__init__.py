"""The `ctxgcd` command: one module for each subcommand, and `command`, which parses the arguments."""
