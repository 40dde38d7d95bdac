"""Constrained decoding: CDSL (arXiv 2412.10418), CDLH and other methods.

  python -m experiments.cdsl --config=configs/cdsl.py
  python -m experiments.cdsl --config=configs/cdsl.py:commongen \\
      --config.examples=176 --config.corpus=<folder of CommonGen> \\
      --workdir=runs/commongen
  python -m experiments.cdsl --config=configs/cdsl.py:harmless \\
      --config.corpus=<folder of dialogues> --workdir=runs/harmless

`methods.cdsl` is a reconstruction; "no S3", "to rise" and trees are variants of
this repository, `methods.cdsl_extended`.

The default needs no download: a shipped pair makes sentences of three words
each, 64 sets that come along. `commongen` has the words of CommonGen's dev
split (arXiv 1911.03705); its folder holds dev.src_alpha.txt, dev.tgt.txt and
dev.constraint.json, as in the repository of NeuroLogic decoding. `python`
continues held-out modules, and must use identifiers of the real continuation.
`harmless` answers in dialogues (arXiv 2204.05862), scored by a reward model;
`configs/train.py` says what its folder holds. Each has a shipped pair. Presets
that may be added, as `commongen,sweep`: `sweep`, lookaheads and thresholds;
`trees`; `readings` of the abstract; `search`, other searches by that reward.

Hardware: two cores of an x86 server, no GPU.
Minutes: the default at most 4, `commongen` with 128 examples 4, `harmless` 3.
To expect, all words present and target calls a token:

    default              CDLH 16x4 96.9 %, 4.04   CDSL to rise 16x4 96.9 %, 1.24
    python               CDLH 51.6 %, 7.12        CDSL 45.3 %, 6.92
    commongen, 176 sets  CDLH 16x4 97.2 %, 4.05   CDSL to rise 16x4 96.6 %, 1.30

and for `harmless` a reward of 1.647 by CDLH and 1.615 by CDSL, greedy 1.304.
"""

import ml_collections

from configs import common


def get_config(presets="default"):
  c = ml_collections.ConfigDict()
  # "commongen"; "python"; "harmless"; "continue", Python by a reward model; or
  # "file", see `experiments.data.constraint_file`. Its folder or file; "" for
  # the word sets that come along, or installed modules.
  c.task, c.corpus = "commongen", ""
  c.split = ""  # Of CommonGen's folder; "" is dev.
  # What a model that was not trained for commongen or a file is told, as in
  # configs/tasks.py; fields are {words}, or the file's.
  c.prompt = {"template": "", "answer": "", "shots": (), "between": "\n\n"}
  c.chat, c.system = False, ""  # The target's chat template; a system message.
  # Folder, shipped name or hub:owner/name; the draft also layers:N or lookup.
  c.target, c.draft = "commongen-target", "commongen-draft"
  # Of parameters and activations ("": as saved), and of matrices, as --weights
  # of generate; the draft's "" is the target's.
  c.dtype = c.draft_dtype = c.draft_weights = ""
  c.weights = ""
  # Model that scores texts; another that scores what was written; and whether
  # the first runs on the host, where it may have a tokenizer of its own.
  c.reward, c.second_reward, c.reward_on_host = "", "", False
  c.examples = 64
  # Of python: identifiers an example, of the most common ones (0: of all).
  c.concepts, c.common = 3, 100
  c.prompt_length, c.max_new_tokens = 48, 32
  c.batch = 1  # Examples decoded together, the unit of time.
  # Batches of greedy decoding that each method's time is compared with; 0:
  # counts alone, and each batch is decoded once.
  c.references = 6
  c.seed = 0
  c.compilation_cache = True  # Keeps compiled programs in the workdir.
  # Strings such as "cdlh(8, 4)", or label, name, sizes and sampling settings
  # (temperature, 0 if not given, top_p, top_k, min_p, typical_p).
  c.methods = SENTENCES
  return common.with_presets(c, _PRESETS, *presets.split(","))


def line(label, method, **more):
  """Returns the entry of a method: its sizes, and how it samples."""
  return {"label": label, "name": method, **more}


SEARCH = {"num_candidates": 8, "lookahead": 8, "reward_weight": 10.0}
# Many candidates with short roll-outs, as few searches as will do.
_WIDE = {"num_candidates": 16, "lookahead": 4, "reward_weight": 30.0}
# A search commits its roll-out, and nothing commits more than it takes for the
# reward to rise.
RISE = "cdsl_extended(commit=rise, commit_rollout=True, low_acceptance=search)"
# Of the abstract, at low acceptance.
READINGS = ("continue", "search", "prefix", "confirm", "regenerate")
_DRAWN = {"temperature": 1.0}
_NUCLEUS = {"temperature": 1.0, "top_p": 0.9}
GREEDY = line("greedy", "autoregressive")
CDLH = line("CDLH", "cdlh", **SEARCH)
METHODS = (
    GREEDY, line("nucleus", "autoregressive", **_NUCLEUS),
    line("beam", "beam_search(8)"),
    line("best of n", "best_of_n(16)", **_DRAWN), CDLH,
    line("CDLH, draft roll-outs", "cdlh", rollout="draft", **SEARCH),
    line("CDSL", "cdsl", **SEARCH),
    line("CDSL, no S3", "cdsl_extended", low_acceptance="search", **SEARCH),
    line("CDSL to rise", RISE, **SEARCH))
SENTENCES = (
    *METHODS[:-1], line("CDLH 16x4", "cdlh", **_WIDE),
    line("CDSL to rise 16x4", RISE, **_WIDE),
    line("CDSL to rise 16x4, a=0, slack 1", RISE, **_WIDE,
         acceptance_threshold=0.0, slack=1.0))
_PYTHON = {"target": "python-target", "draft": "python-draft",
           "max_new_tokens": 40}
_PRESETS = {
    "default": {},
    "python": {"task": "python", "methods": METHODS, **_PYTHON},
    "smoke": {"examples": 8, "max_new_tokens": 16, "batch": 4,
              "methods": (GREEDY, CDLH, METHODS[6])},
    "commongen": {"corpus": "data/commongen", "examples": 200},
    "harmless": {"task": "harmless", "corpus": "data/harmless",
                 "target": "harmless-target", "draft": "harmless-draft",
                 "reward": "harmless-reward", "prompt_length": 64,
                 "max_new_tokens": 40, "methods": METHODS},
    "sweep": {"methods": (
        GREEDY, *(line(f"CDLH n={n}", "cdlh", **{**SEARCH, "lookahead": n})
                  for n in (2, 4, 8, 12)),
        *(line(f"CDSL n={n} a={a:g}", RISE, acceptance_threshold=a,
               **{**SEARCH, "lookahead": n})
          for n in (2, 4, 8, 12) for a in (0.0, 0.5, 0.75, 1.0)))},
    "readings": {"methods": (GREEDY, CDLH, *(
        line(f"{way}, a={a:g}", "cdsl_extended", low_acceptance=way,
             acceptance_threshold=a, **SEARCH) for way in READINGS
        for a in (0.25, 0.5, 1.0)))},
    "trees": {"methods": (GREEDY, CDLH, *(
        line(f"{name} {depth}, slack {slack:g}", RISE, slack=slack,
             **{**SEARCH, "lookahead": depth, **shape})
        for depth in (4, 8) for slack in (0.0, 1.0)
        for name, shape in (("chain", {}),
                            ("rsd_c", {"width": 3, "tree": "rsd_c"}),
                            ("rsd_s", {"width": 3, "tree": "rsd_s"}))))},
    # By the reward, without lookaheads.
    "search": {"methods": (
        GREEDY, *METHODS[2:4],
        line("beam by reward", "beam_search(16, rank=reward)"),
        line("conditional beams", "conditional_beam_search(8, 8, 10.0)"),
        line("segments", "segment_search(4, 4, 4)", **_DRAWN),
        line("particles 16", "particles(16, 10.0)", **_DRAWN),
        line("particles 64", "particles(64, 10.0)", **_DRAWN),
        line("GSI", "gsi(16, 4, 10.0)", **_DRAWN),
        line("DeAL", "deal(4, 4, 8, 10.0)"),
        line("A*", "a_star(4, 4, 32)", **_DRAWN),
        line("LiteSearch", "lite_search(8, logits=True)", **_DRAWN),
        line("PG-TD", "pg_td(8, 64)"))},
    # As RankGen's paper: 2 beams of 10 samples of 20 tokens, or 20 samples.
    "rankgen": {
        **_PYTHON, "task": "continue", "reward": "runs/rankgen/export",
        "prompt_length": 64, "max_new_tokens": 60,
        "methods": (GREEDY, METHODS[1],
                    line("best of 20", "best_of_n(20)", **_NUCLEUS),
                    line("RankGen, 2x10", "segment_search(2, 10, 20)",
                         **_NUCLEUS))},
}
