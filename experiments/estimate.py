"""Estimates memory and cost of a generation on TPUs or GPUs that are not here.

  python -m experiments.estimate --target=<folder> --draft=<folder> \\
      --method="rsd_s(6, 5)" --batch=8 --devices=h100:1

needs a `config.json` of each model, and no accelerator: memory and the bytes
that a step reads are counted from shapes. Where the compiler of `--devices` is
installed, it says more:

  pip install -e '.[tpu]'
  python -m experiments.estimate --devices=v5e:4x4 --mesh=data:8,model:2 \\
      --target=<folder> --draft=<folder> --method="rsd_s(3, 4)" \\
      --batch=16 --prompt_length=512

  pip install -e '.[cuda]'
  python -m experiments.estimate --devices=h100:1 --target=<folder> ...

`--memory_budget=14GiB` chooses the tree: of those that `auto` tries and that
have the name `--method`, the one of most nodes that fits.

It compiles the program of a generation; nothing runs. Prints the memory that
it needs on a device, or that a device has too little. Of TPUs also the cost of
the forwards of a step relative to a token's, in cycles that the compiler has
scheduled. These are not measured: they miss some of the time spent waiting for
memory. Of GPUs, whose compiler schedules none, the kernels of a step and the
bytes that they read and write.

`--tokens=2,8,16` prints instead, for a TPU, the cycles of forwards of these
tokens a row relative to one token's: a tree of as many nodes pays where
it accepts more tokens a call. With `--mesh=model:8` a device has its part of
each layer, without the time that it waits for sums.
"""

import dataclasses
import functools
import time

from absl import flags

import decoding_jax as dj
from experiments.app import launch
from experiments.app import method_specs
from experiments.app import text_tables
from experiments.devices import device_compiler
from experiments.devices import draft_levels
from experiments.devices import gpu_compiler
from experiments.devices import hlo_kernels
from experiments.devices import memory_estimate
from experiments.devices import mesh as mesh_lib
from experiments.devices import mesh_shapes
from experiments.devices import model_pair
from experiments.devices import tpu_compiler
from experiments.flags import model_flags
from experiments.timing import auto_method
from experiments.timing import roofline

_DEVICES = flags.DEFINE_string(
    "devices", "", "What to compile for: TPUs such as v5e:4x4 or v5p:2x2x1, "
    "GPUs such as h100:8; '' for any device, whose memory is not known.")
_METHOD = flags.DEFINE_string("method", "rsd_s",
                              method_specs.help_text())
_TEMPERATURE = flags.DEFINE_float("temperature", 1.0,
                                  "Sampling temperature; 0 is greedy.",
                                  lower_bound=0)
_BATCH = flags.DEFINE_integer("batch", 1, "Rows decoded together.",
                              lower_bound=1)
_PROMPT_LENGTH = flags.DEFINE_integer(
    "prompt_length", 128, "Tokens of the longest prompt.", lower_bound=1)
_MAX_NEW_TOKENS = flags.DEFINE_integer("max_new_tokens", 128,
                                       "Most tokens to generate.")
_COSTS = flags.DEFINE_bool(
    "costs", True, "Also count the cycles of forwards, or the kernels of a "
    "step.")
_TOKENS = flags.DEFINE_list(
    "tokens", [], "Tokens a row whose forwards on a TPU are compared with that "
    "of one; then nothing else is estimated.")
# --help shows flags of a main alone, and those that it adopts.
flags.adopt_module_key_flags(model_flags)
flags.declare_key_flag("mesh")
flags.declare_key_flag("scan_layers")
flags.declare_key_flag("draft_mesh")
_MIB = 2**20


def main():
  gpu = gpu_compiler.model(_DEVICES.value)
  compiler = gpu_compiler if gpu else tpu_compiler
  sheet, count = device_compiler.sheet(_DEVICES.value or "any:1")
  compiles = bool(_DEVICES.value) and (
      compiler.installed() or bool(_TOKENS.value) or not sheet)
  devices = compiler.devices(_DEVICES.value) if compiles else [None] * count
  budget = model_flags.memory_budget()
  sampling = dj.Sampling(_TEMPERATURE.value)
  methods = ([method_specs.from_flag(_METHOD.value)] if budget is None
             else auto_method.methods(model_flags.has_drafter(), _BATCH.value))
  pair = model_flags.open_pair(_METHOD.value, methods, tokens=False)
  config = pair.source.architecture()
  shape = mesh_lib.from_flags(config, _BATCH.value, len(devices))
  if _TOKENS.value:
    if gpu:
      raise launch.UserError(f"--tokens: --devices={_DEVICES.value} has no "
                             "compiler that counts cycles; TPUs have.")
    print(_ratios(config, shape, devices[0]))
    return
  with launch.user_errors(ValueError):
    ways = mesh_lib.partition(pair, shape, mesh_lib.DRAFT_MESH.value)
  method = methods[0] if budget is None else _within(budget, pair, ways)
  model_pair.check(method, pair, _PROMPT_LENGTH.value, _MAX_NEW_TOKENS.value,
                   sampling)
  program = method.sampled if _TEMPERATURE.value else method.greedy
  need = memory_estimate.estimate(pair, [program], _BATCH.value,
                                  _PROMPT_LENGTH.value, _MAX_NEW_TOKENS.value,
                                  ways)
  device = devices[0].device_kind if compiles else (
      _DEVICES.value.partition(":")[0] or "any device")
  print(f"{method.name} on {shape[0]} x {shape[1]} of {len(devices)} "
        f"{device}: {_BATCH.value} rows of {_PROMPT_LENGTH.value} + "
        f"{_MAX_NEW_TOKENS.value} tokens", flush=True)
  if not compiles:
    print(f"a device needs {memory_estimate.text(need)}: it "
          f"{_verdict(sum(need), sheet and sheet.memory)}")
    print(_step_bytes(pair, program, need, ways, sheet and sheet.bandwidth))
    return
  there = sheet and sheet.memory
  compiled = _compiled(pair, mesh_shapes.make(shape, devices), method, sampling,
                       there, "cuda" if gpu else "tpu")
  print(_memory(compiled.memory_analysis(), need, there), flush=True)
  if gpu and _COSTS.value:
    print(_kernels(compiled.as_text(), need.weights, gpu))
  elif _COSTS.value:
    print(_costs(config, pair.drafts.architecture(pair.source), program,
                 _BATCH.value // shape[0], devices[0]))


def _ratios(config, shape, device):
  """Returns a table of forwards of `--tokens`, relative to one token's."""
  slots = _PROMPT_LENGTH.value + _MAX_NEW_TOKENS.value
  count = functools.cache(functools.partial(
      tpu_compiler.forward_cycles, part(config, shape[1]), device,
      _BATCH.value // shape[0], slots=slots))
  table = _cycles(["tokens a row"], [
      (str(n), count(n)) for n in (1, *launch.numbers(_TOKENS))])
  return f"{table}\n{slots} slots a row"


def _cycles(head, rows):
  """Returns a table of rows that end with cycles, relative to the first."""
  one = rows[0][-1]
  return text_tables.plain_table([[*head, "cycles", "of a token"], *(
      [*row[:-1], f"{row[-1]:,}", f"{row[-1] / one:.3f}"] for row in rows)])


def part(config, number):
  """Returns the architecture of one of `number` devices that split layers."""
  sizes = {name: getattr(config, name) for name in (
      "num_heads", "num_kv_heads", "hidden_dim", "vocab_size")}
  for name, size in sizes.items():
    if size % number:
      raise launch.UserError(f"--mesh=model:{number} does not divide "
                             f"{name}={size} of the target.")
  return dataclasses.replace(config, **{
      name: size // number for name, size in sizes.items()})


def _within(budget, pair, ways):
  """Returns the method of most nodes that fits, of those that `auto` tries."""
  methods = auto_method.methods(pair.draft, _BATCH.value)
  name_of = lambda method: method.name.partition("(")[0]
  kinds = {x: x.sampled if _TEMPERATURE.value else x.greedy for x in methods
           if name_of(x) == _METHOD.value}
  if not kinds:
    names = sorted(set(map(name_of, methods)))
    raise launch.UserError(f"--memory_budget and --method={_METHOD.value}: one "
                           f"of {', '.join(names)} is needed.")
  sizes = {x: sum(memory_estimate.estimate(
      pair, [each], _BATCH.value, _PROMPT_LENGTH.value, _MAX_NEW_TOKENS.value,
      ways)) for x, each in kinds.items()}
  fitting = [x for x, size in sizes.items() if size <= budget]
  if not fitting:
    raise launch.UserError(
        f"--memory_budget: {_METHOD.value} needs about "
        f"{min(sizes.values()):,} bytes at least, and there are {budget:,}.")
  return max(fitting, key=lambda x: memory_estimate.nodes(kinds[x])[0])


def _step_bytes(pair, program, need, ways, bandwidth) -> str:
  """Returns what a step reads, and the least seconds of plain decoding."""
  # No device computes faster than it reads the weights.
  target = roofline.weight_bytes(pair.source.architecture(),
                                 pair.target_params) // ways.layers
  parts = {"target, once": target, "caches, at most": need.caches}
  config, levels = pair.drafts.architecture(pair.source), 0
  if config is not None and isinstance(program, dj.Pair):
    levels = program.drafter.calls
  if levels:
    draft = roofline.weight_bytes(config, pair.draft_params)
    parts[f"draft, {text_tables.count(levels, 'time')}"] = (
        levels * draft // (ways.drafts or ways.layers))
  lines = [["a step of a device reads", "MB", "ms of its bandwidth"]]
  for name, size in (*parts.items(), ("together", sum(parts.values()))):
    lines.append([name, f"{size / 1e6:,.1f}", f"{1e3 * size / bandwidth:.2f}"
                  if bandwidth else text_tables.EMPTY])
  tokens = _MAX_NEW_TOKENS.value
  plain = (f"\n{tokens} tokens of plain decoding: at least "
           f"{tokens * target / bandwidth:.2f} s" if bandwidth else "")
  return f"{text_tables.plain_table(lines)}{plain}"


def _compiled(pair, mesh, method, sampling, there, platform):
  pair = mesh_lib.with_params(pair, mesh, mesh_lib.stand_ins,
                              mesh_lib.DRAFT_MESH.value)
  start = time.perf_counter()
  compiled = device_compiler.compile_(mesh_lib.trace(
      pair, _BATCH.value, _PROMPT_LENGTH.value, method=method,
      max_new_tokens=_MAX_NEW_TOKENS.value, sampling=sampling,
      eos_id=pair.eos_id, device_bytes=there), platform)
  print(f"compiled in {time.perf_counter() - start:.0f} s", flush=True)
  return compiled


def _memory(sizes, need, there):
  rows = {"parameters, prompts": (sizes.argument_size_in_bytes, need.weights),
          "caches, temporaries": (sizes.temp_size_in_bytes,
                                  sum(need) - need.weights),
          "results": (sizes.output_size_in_bytes, 0),
          "program": (sizes.generated_code_size_in_bytes, 0)}
  rows["together"] = together = [sum(x) for x in zip(*rows.values())]
  table = text_tables.plain_table([
      ["MiB of a device", "compiled", "estimated"], *(
          [name, *(f"{x / _MIB:,.1f}" for x in row)]
          for name, row in rows.items())])
  return f"{table}\n{_verdict(together[0], there)}"


def _verdict(need, there):
  if there is None:
    return "has to fit into a device whose memory is unknown"
  fits = "fits into" if need <= there else "does NOT fit into"
  return f"{fits} the {there / _MIB:,.0f} MiB of a device"


def _kernels(text, weights, gpu):
  """Returns a table of what a GPU starts, reads and writes in a step."""
  kernels = hlo_kernels.of_step(text)
  lines = [["a step of a device", "kernels", "MB", "ms of its bandwidth"]]

  def add(name, count, num_bytes):
    lines.append([name, count, f"{num_bytes / 1e6:,.1f}",
                  f"{1e3 * num_bytes / gpu.bandwidth:.3f}"])

  add("read and written", f"{len(kernels):,}",
      sum(x.num_bytes for x in kernels))
  copies = [x for x in kernels if x.opcode == "copy"]
  add("of this by copies", f"{len(copies):,}", sum(x.num_bytes for x in copies))
  add("weights, once", "", weights)
  return text_tables.plain_table(lines)


def _costs(config, drafting, program, rows, device):
  """Returns a table of the cost of a step's forwards, relative to a token."""
  if any(x is not None and x.num_experts for x in (config, drafting)):
    return ("no cycles of forwards: how many experts take part depends on the "
            "text")
  slots = memory_estimate.most_slots([program], _PROMPT_LENGTH.value,
                                     _MAX_NEW_TOKENS.value)
  count = functools.cache(functools.partial(
      tpu_compiler.forward_cycles, device=device, batch=rows, slots=slots))
  scored, _ = memory_estimate.nodes(program)
  step = [("target, of a step", str(scored), count(config, tokens=scored))]
  levels = draft_levels.tokens(program.drafter) if (
      isinstance(program, dj.Pair) and drafting is not None) else ()
  if levels:
    step.append(("draft, all levels", ", ".join(map(str, levels)), sum(
        count(drafting, tokens=tokens) for tokens in levels)))
  table = _cycles(["forwards of a device", "tokens a row"], [
      ("target, a token", "1", count(config, tokens=1)), *step,
      ("a step", "", sum(cycles for *_, cycles in step))])
  return f"{table}\nundivided layers, {slots} slots"


if __name__ == "__main__":
  launch.run(main)
