"""What Snakemake and DVC ask: which code computes a result, and why a run would be made again. No torch."""
