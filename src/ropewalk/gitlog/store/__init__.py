"""Git repositories on disk: packs, refs, the index, remembered heads and git's configuration."""
