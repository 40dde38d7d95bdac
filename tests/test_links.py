"""Links of README and docs lead somewhere, and so do pages named in code."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_CODE = [path for folder in ("configs", "decoding_jax", "examples",
                             "experiments", "models", "tests")
         for suffix in ("py", "ipynb", "h", "cc")
         for path in sorted((ROOT / folder).rglob(f"*.{suffix}"))]
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_NAMED = re.compile(r"(?<!master/)docs/[\w/]+\.(?:md|png)(?:#[\w-]+)?")


def anchors(text):
  """Returns the anchors of a page's headings, as GitHub makes them."""
  text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
  headings = re.findall(r"^#+ (.*)$", text, re.M)
  return {re.sub(r"[^\w\- ]", "", x.lower()).replace(" ", "-")
          for x in headings}


def fault(folder, link):
  """Returns what of a link does not exist; "" if it leads somewhere."""
  name, _, anchor = link.partition("#")
  path = folder / name
  if not path.exists():
    return name
  missing = anchor and anchor not in anchors(path.read_text("utf-8"))
  return link if missing else ""


def links(path):
  """Returns the links of a page to other pages, files and headings."""
  return [path.name + link if link.startswith("#") else link
          for link in _LINK.findall(path.read_text("utf-8"))
          if "://" not in link]


def test_links_and_pages_named_in_code_lead_somewhere():
  assert not [(path.name, x) for path in PAGES for link in links(path)
              if (x := fault(path.parent, link))]
  assert not [(path.name, x) for path in _CODE if path.name != "test_links.py"
              for link in _NAMED.findall(path.read_text("utf-8"))
              if (x := fault(ROOT, link))]


def test_every_page_is_linked():
  left, seen = [ROOT / "README.md"], set()
  while left:
    path = left.pop().resolve()
    if path not in seen and path.suffix == ".md":
      seen.add(path)
      left += [path.parent / link.partition("#")[0] for link in links(path)]
  assert not {path.resolve() for path in PAGES} - seen


def test_control_faults_are_seen():
  assert anchors("# A `b`, c\n```\n# no\n```\n") == {"a-b-c"}
  assert fault(ROOT, "docs/none.md") == "docs/none.md"
  assert fault(ROOT, "README.md#nowhere") == "README.md#nowhere"
  assert not fault(ROOT, "README.md#methods")
