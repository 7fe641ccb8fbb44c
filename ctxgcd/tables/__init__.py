"""Tables: published numbers, aggregation over seeds, comparison and rendering."""
