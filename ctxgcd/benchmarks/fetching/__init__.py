"""Downloads, archives and checksums of data."""
