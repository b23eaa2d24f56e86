"""The settings that methods share, each beside its symbol in the paper, checked when a game is made.

A method inherits the groups it needs, so that it knows exactly its own settings and refuses all others.
"""
