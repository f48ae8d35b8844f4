"""Power loss: record the system calls of a workload, rebuild what a disk may hold after a cut, and reopen it."""
