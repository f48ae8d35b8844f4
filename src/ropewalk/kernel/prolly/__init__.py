"""The tree that two peers compare: equal entries give equal roots, and different roots lead to what differs.

`node` defines the hashes, `tree` keeps a tree in an ordered store, `checks` refuses answers that no honest peer gives.
"""
