"""The doctor: what of an installation works, and what a model allows, found by trying it.

Each check is a file here that yields findings as it makes them; `checkup.py` puts them in order.
"""
