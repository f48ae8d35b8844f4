"""The kernel: canonical bytes, their names, keys, links and proofs; what all engines share and nothing more.

Everything here is pure. No function opens a file or a socket, reads a clock, draws randomness or looks at the
environment: time and chance come in as arguments (`now_ms`, `entropy`), bytes come in and values go out. So
every function can be replayed, simulated and tested against vectors. The kernel imports `ropewalk.errors` and
libraries without side effects; it never imports an engine.
"""
