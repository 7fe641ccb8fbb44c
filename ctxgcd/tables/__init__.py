"""Tables: the published numbers, the aggregation over seeds, the comparison and its rendering."""
