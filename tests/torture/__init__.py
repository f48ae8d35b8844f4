"""Long reliability runs. Each module has `run(quick: bool) -> dict`, a machine-readable report."""
