"""`python -m ctxgcd` is the `ctxgcd` command."""

from ctxgcd.cli.command import main

if __name__ == "__main__":
    main()
