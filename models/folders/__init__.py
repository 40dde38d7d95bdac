"""Model folders: names, downloads, atomic replacement."""
