"""The logic behind the Snakemake and DVC workflows: runs, their identities, targets and caches. Without torch."""
