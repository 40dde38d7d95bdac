"""What experiments share: the loop over cells, their records, and reports."""
