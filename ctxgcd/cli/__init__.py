"""The `ctxgcd` command: one module a command, and `command`, which reads the words."""
