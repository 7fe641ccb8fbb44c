"""The catalogue of methods: their names, classes and parameters. Without torch."""
