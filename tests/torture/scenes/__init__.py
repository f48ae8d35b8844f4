"""The scenes of `tests.torture.scenarios`, by what they try: load, faults, copies, trust."""
