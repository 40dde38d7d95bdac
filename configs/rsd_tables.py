"""Runs of `experiments.rsd` behind pages of docs/results, a preset each.

  python -m experiments.rsd --config=configs/rsd_tables.py:paths \\
      --workdir=runs/paths

Hardware and minutes are on the page.
"""

from configs import common
from configs import rsd


def get_config(preset="paths"):
  return common.with_presets(rsd.defaults(), _PRESETS, preset)


def _at(length, *methods, **fields):
  """Returns the fields of a run of one draft length."""
  return {"lengths": (length,), "budgets": (),
          "trees": {"length": {str(length): methods}}, **fields}


def _over_heads(nodes, beams, branchings, width):
  """Returns chains and trees of limited nodes, of 4 and more levels."""
  return (*(f"speculative({d}, traversal)" for d in (4, 7, 16, 32)
            if d <= nodes),
          *(f"opt_tree({nodes}, {width}, {d})" for d in (4, 7)),
          *(f"rsd_s({beam}, {rule})" for rule in ("recursive", "traversal")
            for beam in beams),
          *(f"rsd_c({b}, conditional_ot)" for b in branchings))


# A batch with few timings of plain decoding, for counts.
_COUNTS = {"prompts": 64, "batch": 16, "references": 1}
_HEADS = {
    **_COUNTS, "lengths": (), "budgets": (8, 16, 32, 64),
    "temperatures": (0.0, 0.6, 1.0),
    "trees": {"budget": {
        "8": _over_heads(8, ("2, 4", "4, 2"), ((2, 1, 1, 1), (1, 1, 2, 1, 1)),
                         6),
        "16": _over_heads(16, ("4, 4", "3, 5"), ((2, 2, 1, 1), (2, 1, 2, 1, 1)),
                          8),
        "32": _over_heads(32, ("8, 4", "5, 6"), ((4, 2, 1, 1), (4, 1, 2, 1, 1)),
                          16),
        "64": _over_heads(64, ("16, 4", "9, 7"),
                          ((8, 2, 1, 1), (5, 1, 2, 1, 1, 1, 1)), 24)}}}
_PRESETS = {
    # Chains and trees without replacement, by node and by path.
    "paths": {
        "budgets": (), "prompts": 64,
        "trees": {"length": {n: tuple(
            form for x in methods if x.startswith(("speculative", "rsd"))
            for form in (x, f"{x[:-1]}, traversal)"))
                             for n, methods in rsd.full(rsd.LENGTHS).items()}}},
    "pearl": _at(4, "speculative(2)", "pearl(2)", "speculative(4)", "pearl(4)",
                 temperatures=(0.0, 1.0), prompt_length=64, max_new_tokens=64),
    # 60 nodes of 10 x 6 and fewer: of the beam, of all candidates, by a delta.
    "candidates": _at(6, *(f"opt_tree({n}, 10, 6{others})" for n in (60, 24)
                           for others in ("", ", rank_all=True", ", rank_all="
                                          "True, threshold=0.3")),
                      drafts={"eagle3": "python-eagle3",
                              "independent": "python-draft"},
                      temperatures=(0.0, 1.0), **_COUNTS),
    # Four paths of one model or of a mixture, and two each of two models.
    "several": _at(4, "specinfer(4, 4)", "specinfer(2, 4, models=2)",
                   drafts={"one": "python-draft",
                           "lookup": "python-draft,lookup",
                           "layers": "python-draft,layers:2"},
                   temperatures=(0.0, 1.0), **_COUNTS),
    # Timed next to plain decoding on each prompt.
    "no_drafter": _at(
        4, "prompt_lookup(4)", "suffix(6, 4)", "token_recycling((3, 2, 1, 1))",
        # With its paper's search, its paper's update, both; and larger.
        *(f"aded({nodes}, 4, {others})" for nodes in (6, 24) for others in (
            "simulations=0", "simulations=150", "window=16",
            "simulations=150, window=16")),
        # The trees of their papers, which are larger.
        "token_recycling()", *(
            f"lookahead({sizes}{others})"
            for sizes in ("", "ngram=3, window=4, guesses=3, ")
            for others in ("by_one=True", "by_one=False",
                           "from_text=False, by_one=False")),
        draft="", temperatures=(0.0,), prompts=32, buckets=1, max_new_tokens=64,
        references=10**6),
    "heads": {**_HEADS, "drafts": {
        "independent": "python-draft", "medusa": "python-medusa",
        "eagle3": "python-eagle3", "dflash": "python-dflash",
        "dspark": "python-dspark", "mine": ""}},
    # Heads that configs/train.py:head,<name> trains alike.
    "head_kinds": {
        **_HEADS, "budgets": (8, 32), "temperatures": (0.0, 1.0),
        "prompts": 32,
        "drafts": {name: f"runs/head-{name}/export" for name in common.HEADS},
        "trees": {"budget": {"8": ("rsd_s(2, 4, traversal)",),
                             "32": ("rsd_s(8, 4, traversal)",)}}},
}
