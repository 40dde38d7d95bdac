"""Draft trees: drafters, verifiers, and the loop that joins them."""
