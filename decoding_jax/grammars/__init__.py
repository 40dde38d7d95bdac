"""Grammars: automata over tokens, and engines on the host that follow them."""
