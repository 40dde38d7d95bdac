"""Search over whole texts: one level of a beam, and the loop over levels."""
