"""Archives (S4 §13): old blocks in write-once files, restored and rehearsed."""
