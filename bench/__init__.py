"""Benchmarks: ours and a peer, side by side in one run. `python -m bench` runs all, `python -m bench jcs` one."""
