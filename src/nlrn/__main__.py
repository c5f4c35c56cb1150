"""`python -m nlrn` is the command `nlrn`."""

from nlrn.cli import main

if __name__ == "__main__":
    main()
