"""Parts of every program: launch, processes, signals, tables."""
