"""Generation by llama.cpp, as a server of `subprocess_server`.

By the package `xllamacpp`, whose requests go to the server in this process. A
process has one setting, and decodes one row at a time. `assisted` drafts the
most probable tokens, `probabilistic` samples where the temperature is not 0.
"""

import functools
import http.client
import json
import time
import urllib.parse

import xllamacpp

from experiments.rivals import subprocess_server

_TYPES = xllamacpp.common_speculative_type


def load(request):
  """Loads the target, and the draft if the setting has one."""
  threads = subprocess_server.threads(request)
  params = xllamacpp.CommonParams()
  params.model.path = request["target"]
  params.n_parallel, params.n_ctx = 1, request["max_length"] + 64
  params.cache_ram_mib = 0
  if request["weights"] == "float32":
    wide = xllamacpp.ggml_type.GGML_TYPE_F32
    params.cache_type_k = params.cache_type_v = wide
  _with_threads(params, threads)
  # Faster by 8 ms a token of 32,000 tokens, whose exponentials are one by one.
  params.sampling.backend_sampling = request.get("in_graph", True)
  _SETTINGS[request["setting"]](params, request, threads)
  return xllamacpp.Server(params), {"threads": threads, "device": "cpu"}


def generate(server, request):
  """Continues one prompt; arguments as in `transformers_server.generate`."""
  [prompt] = request["prompts"]
  subprocess_server.reset_peak()
  start = time.perf_counter()
  answer = _post(server, {
      "prompt": prompt, "n_predict": request["max_new_tokens"],
      "seed": request["seed"], "cache_prompt": False, "return_tokens": True,
      "ignore_eos": True, "backend_sampling": request.get("in_graph", True),
      **_sampling(request)})
  seconds = time.perf_counter() - start
  accepted = answer["timings"].get("draft_n_accepted", 0)
  return {"tokens": [answer["tokens"]], "seconds": seconds,
          "target_calls": len(answer["tokens"]) - accepted,
          "peak_bytes": subprocess_server.peak_memory()}


def _sampling(request):
  """Returns the fields of a request, with no sampler that cuts nothing."""
  if not request["temperature"]:
    return {"samplers": ["top_k"], "top_k": 1, "temperature": 0.0}
  used = {"top_k": request["top_k"] > 0, "top_p": request["top_p"] < 1,
          "min_p": request["min_p"] > 0}
  return {"samplers": ["temperature", *(x for x, cuts in used.items() if cuts)],
          **{x: request[x] for x in ("temperature", *used)}}


def _post(server, request):
  address = urllib.parse.urlsplit(server.listening_address)
  connection = http.client.HTTPConnection(address.hostname, address.port)
  try:
    connection.request("POST", "/completion", json.dumps(request),
                       {"Content-Type": "application/json"})
    answer = json.load(connection.getresponse())
  finally:
    connection.close()
  if "error" in answer:
    raise ValueError(answer["error"]["message"])
  return answer


def _with_threads(params, threads):
  for cpu in (params.cpuparams, params.cpuparams_batch):
    cpu.n_threads = threads


def _assisted(params, request, threads, probabilistic=False):
  params.speculative.types = [_TYPES.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
  draft = params.speculative.draft
  draft.mparams.path = request["draft"]
  draft.n_max, draft.n_min = request["length"], 0
  draft.p_min = request.get("p_min", 0.0)
  draft.probabilistic = probabilistic
  _with_threads(draft, threads)


def _lookup(params, request, _):
  """Copies `length` tokens after the last `ngram`; `kind` is of the engine."""
  kind = request.get("kind", "simple")
  params.speculative.types = [
      getattr(_TYPES, f"COMMON_SPECULATIVE_TYPE_NGRAM_{kind.upper()}")]
  options = getattr(params.speculative, f"ngram_{kind}")
  if kind == "mod":
    options.n_match, options.n_max, options.n_min = (
        request["ngram"], request["length"], 1)
  else:
    options.size_n, options.size_m = request["ngram"], request["length"]


_SETTINGS = {
    "plain": lambda *_: None, "assisted": _assisted, "lookup": _lookup,
    "probabilistic": functools.partial(_assisted, probabilistic=True)}


if __name__ == "__main__":
  subprocess_server.serve(load, generate)
