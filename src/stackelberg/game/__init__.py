"""The Stackelberg game between a model (leader) and an adversary (follower) on its word embeddings.

Read `response.py` first: it is the heart. The follower's K steps are in `follower.py`, the space
they move in is in `ball.py`, what it maximises is in `payoff.py`, and `game.py` deals the cards.
"""
