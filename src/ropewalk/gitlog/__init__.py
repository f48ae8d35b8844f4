"""gitlog: a provable event stream in a plain git repository (S0 Shiplog, S1 Message Plane, shiplog-compat).

One engine, three layouts. The engine does no I/O of its own; `gitlog.log` states the port it needs.
"""
