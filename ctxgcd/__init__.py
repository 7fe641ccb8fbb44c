"""ctxgcd: generalized category discovery with contextual losses, reproducible end to end."""

__version__ = "0.1.0"
