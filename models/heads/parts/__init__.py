"""What heads have in common; each file of `models.heads` is a head."""
