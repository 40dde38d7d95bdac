"""What every program shares: launch, processes, signals, tables."""
