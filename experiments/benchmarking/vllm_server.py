"""Generation by `vllm`, as a server of `subprocess_server`.

Written from its documentation (0.26) and never tried: it needs a GPU. Settings:

    plain      as it is called by default
    assisted   speculative decoding by the draft, so many tokens a step
    lookup     the same with drafts that are copied from the text

An engine has one setting, so that each of them is a process. It cuts by min-p
ahead of top-k and top-p, not after them: with both its distribution is another.
Versions of it have drafted nothing where there was a min-p.
"""

import time

import vllm

from experiments.benchmarking import subprocess_server


def load(request):
  """Starts an engine.

  Args:
    request: `target` and `draft`, folders; `dtype`, here of both; `setting` and
      `length`; `max_length`, of a text; `memory_share`, of the device for all
      it needs.

  Returns:
    The engine, and an answer with the device.
  """
  engine = vllm.LLM(
      model=request["target"], skip_tokenizer_init=True,
      dtype=request["dtype"], max_model_len=request["max_length"],
      gpu_memory_utilization=request["memory_share"],
      speculative_config=_SETTINGS[request["setting"]](request))
  return engine, {"device": "cuda"}


def generate(engine, request):
  """Continues prompts; arguments as of `transformers_server.generate`."""
  probs = vllm.SamplingParams(
      temperature=request["temperature"], top_k=request["top_k"],
      top_p=request["top_p"], min_p=request["min_p"],
      max_tokens=request["max_new_tokens"], ignore_eos=True, detokenize=False,
      seed=request["seed"])
  prompts = [{"prompt_token_ids": tokens} for tokens in request["prompts"]]
  start = time.perf_counter()
  found = engine.generate(prompts, probs, use_tqdm=False)
  seconds = time.perf_counter() - start
  return {"tokens": [list(x.outputs[0].token_ids) for x in found],
          "seconds": seconds, "target_calls": None, "peak_bytes": None}


def _assisted(request):
  return {"method": "draft_model", "model": request["draft"],
          "num_speculative_tokens": request["length"]}


def _lookup(request):
  return {"method": "ngram", "num_speculative_tokens": request["length"],
          "prompt_lookup_max": 2}


_SETTINGS = {"plain": lambda request: None, "assisted": _assisted,
             "lookup": _lookup}


if __name__ == "__main__":
  subprocess_server.serve(load, generate)
