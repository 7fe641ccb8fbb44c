"""Small helpers: files, tables of users, progress, terminals, signals, random streams."""
