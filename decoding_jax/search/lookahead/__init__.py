"""Lookaheads scored by a reward: the parts of CDLH and CDSL."""
