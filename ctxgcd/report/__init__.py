"""One self-contained page of results: tables, figures, confusion, embeddings and galleries of discovered classes."""
