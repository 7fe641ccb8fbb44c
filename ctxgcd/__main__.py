"""`python -m ctxgcd` is the `ctxgcd` command."""

from ctxgcd.cli import main

if __name__ == "__main__":
    main()
