"""Archives, downloads, and checksums of data."""
