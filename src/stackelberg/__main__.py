"""`python -m stackelberg` is the command `stackelberg`."""

from .cli import main

main()
