"""Programs, which `python -m experiments` lists.

Modules of this folder are programs; its packages hold what they share.
"""

import importlib.util
import pathlib
import sys

# Packages of ours that a folder of the same name may hide.
_root = pathlib.Path(__file__).resolve().parents[1]
for _package in ("configs", "decoding_jax", "models"):
  _spec = importlib.util.find_spec(_package)
  if _spec and _spec.origin and not pathlib.Path(
      _spec.origin).resolve().is_relative_to(_root / _package):
    raise ImportError(
        f"the package {_package!r} is {_spec.origin}, which hides that of "
        "decoding_jax: start in another folder, or as `python -P -m "
        "experiments....`.", name=__name__)

# While Python imports the packages of a module that it is asked to run, "-m"
# stands for the path of that module.
if sys.argv[:1] == ["-m"] and "-m" in sys.orig_argv:
  _name = sys.orig_argv[sys.orig_argv.index("-m") + 1]
  # The servers are programs that `subprocess_server` starts.
  if _name.count(".") > 1 and not _name.endswith("_server"):
    print(f"{_name} is not a program; programs are named experiments.<name>, "
          "and `python -m experiments` lists them.", file=sys.stderr)
    sys.exit(2)
