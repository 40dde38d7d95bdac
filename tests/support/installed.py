"""Installs Python packages with files of models."""


def package(site, name, files):
  """Installs files, of which `__init__.py` would fail."""
  module = name.replace("-", "_")
  files = {"__init__.py": b"raise AssertionError('imported')", **files}
  info = site / f"{module}-1.0.dist-info"
  info.mkdir(parents=True)
  (info / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
  (info / "top_level.txt").write_text(module)
  for path, content in files.items():
    (site / module / path).parent.mkdir(parents=True, exist_ok=True)
    (site / module / path).write_bytes(content)
  (info / "RECORD").write_text("".join(
      f"{module}/{path},,\n" for path in files))
  return site / module


def in_parts(site, name, content, count=3):
  """Installs a file in pieces, of which `name` has the number."""
  size = -(-len(content) // count)
  for i in range(count):
    package(site, f"part{i}", {name.format(i):
                               content[i * size:(i + 1) * size]})
