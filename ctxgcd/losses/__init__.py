"""Loss terms: pure functions of tensors, one module for each term.

Rows of a two-view batch of B images: view 1's B rows, then view 2's B rows in the same order (2B rows).
Every term is finite, with finite gradients, in every degenerate case: no labelled image gives 0 that is still
part of the graph; so do a single class, a single row, or no class seen. Half-precision inputs are computed in
float32. No function moves a value to the host.
"""
