"""The report: a self-contained page with tables, figures, confusion matrices, embeddings and galleries."""
