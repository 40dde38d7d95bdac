"""JSON Schema as automata over bytes."""
