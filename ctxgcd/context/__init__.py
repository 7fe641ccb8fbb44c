"""Which rows share a context, and which images a neighbour batch holds: pure, fed with tensors."""
