"""`python -m attree.cli` is the `attree` command."""

from attree.cli import main

if __name__ == "__main__":
    main()
