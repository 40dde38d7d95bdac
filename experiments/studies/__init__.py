"""Studies of single pages of docs, one short file each, imported by nobody."""
