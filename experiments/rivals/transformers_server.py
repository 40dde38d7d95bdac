"""Generation by `transformers`, as a server of `subprocess_server`.

A further setting is `compiled`: a static cache, `torch.compile`, and weights
frozen into the program. With drafts the library decodes one row at a time.
"""

import contextlib
import time

import torch
import torch._inductor.config  # pylint: disable=unused-import
import transformers

from experiments.rivals import subprocess_server


def load(request):
  """Loads both models; returns them by name, and an answer."""
  torch.set_num_threads(subprocess_server.threads(request))
  # Weights become constants, which compiled programs may rearrange.
  torch._inductor.config.freezing = True  # pylint: disable=protected-access
  device = "cuda" if torch.cuda.is_available() else "cpu"
  models = {}
  for name, dtype in (("target", "dtype"), ("draft", "draft_dtype")):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        request[name], dtype=getattr(torch, request[dtype]))
    # No token ends a text: all outputs are equally long.
    model.generation_config = transformers.GenerationConfig(pad_token_id=0)
    models[name] = model.to(device).eval()
  return models, {"threads": torch.get_num_threads(), "device": device}


def generate(models, request):
  """Continues prompts of one length; see `subprocess_server.generate`."""
  target = models["target"]
  options = {
      **_sampling(request), **_SETTINGS[request["setting"]](models, request)
  }
  prompts = torch.tensor(request["prompts"], device=target.device)
  torch.manual_seed(request["seed"])
  _forget_peak()
  # Hooks would be compiled in; a compiled program makes a call per token.
  counting = (contextlib.nullcontext() if "compile_config" in options
              else _counted(target))
  _wait()
  start = time.perf_counter()
  with counting as calls:
    texts = target.generate(
        prompts, attention_mask=torch.ones_like(prompts),
        max_new_tokens=request["max_new_tokens"], **options)
  _wait()
  seconds = time.perf_counter() - start
  tokens = texts[:, prompts.shape[1]:].tolist()
  return {"tokens": tokens, "seconds": seconds, "peak_bytes": _peak(),
          "target_calls": len(tokens[0]) if calls is None else len(calls)}


def _sampling(request):
  if not request["temperature"]:
    return {"do_sample": False}
  return {"do_sample": True, "temperature": request["temperature"],
          "top_k": request["top_k"], "top_p": request["top_p"],
          # With 0 the library would add a step that cuts nothing.
          "min_p": request["min_p"] or None}


def _compiled(models, request):
  # One cache for all runs of a shape: a program with frozen weights always
  # writes into the cache that it was compiled with.
  slots = len(request["prompts"][0]) + request["max_new_tokens"]
  shape = len(request["prompts"]), slots
  caches = models.setdefault("caches", {})
  if shape not in caches:
    caches[shape] = transformers.StaticCache(models["target"].config, slots)
  caches[shape].reset()
  on_gpu = models["target"].device.type == "cuda"
  config = transformers.CompileConfig(
      mode="reduce-overhead" if on_gpu else "default", dynamic=False)
  # Else it compiles only on GPUs.
  config._compile_all_devices = True  # pylint: disable=protected-access
  return {"past_key_values": caches[shape], "compile_config": config}


def _assisted(models, request):
  models["draft"].generation_config = transformers.GenerationConfig(
      pad_token_id=0, num_assistant_tokens=request["length"],
      num_assistant_tokens_schedule="constant",
      assistant_confidence_threshold=0.0)
  return {"assistant_model": models["draft"]}


_SETTINGS = {
    "plain": lambda *_: {}, "compiled": _compiled, "assisted": _assisted,
    "lookup": lambda _, request: {"prompt_lookup_num_tokens": request["length"]}
}


@contextlib.contextmanager
def _counted(model):
  calls = []
  hook = model.register_forward_pre_hook(lambda *_: calls.append(None))
  try:
    yield calls
  finally:
    hook.remove()


def _wait():
  if torch.cuda.is_available():
    torch.cuda.synchronize()


def _forget_peak():
  if torch.cuda.is_available():
    torch.cuda.reset_peak_memory_stats()
  subprocess_server.reset_peak()


def _peak():
  if torch.cuda.is_available():
    return torch.cuda.max_memory_allocated()
  return subprocess_server.peak_memory()


if __name__ == "__main__":
  subprocess_server.serve(load, generate)
