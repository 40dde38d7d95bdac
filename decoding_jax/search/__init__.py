"""Search over whole texts: beams, and selection level by level."""
