"""The benchmarks: readers, class lists, the split rule, the data check."""
