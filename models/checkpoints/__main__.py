"""Adds digests to folders of models that were saved without them."""

import sys

from models.checkpoints import digests
from models.checkpoints import load_save

for folder in sys.argv[1:]:
  try:
    load_save.add_digests(folder)
  except (OSError, ValueError) as e:
    sys.exit(f"error: {e}")
  print(f"{folder}: {digests.FILE}")
