"""Lists the programs: python -m experiments."""

import ast
import pathlib

if __name__ == "__main__":
  for _path in sorted(pathlib.Path(__file__).parent.glob("[a-z]*.py")):
    _text = ast.get_docstring(ast.parse(_path.read_text("utf-8")))
    print(f"python -m experiments.{_path.stem:14}{_text.splitlines()[0]}")
