"""Decodes with vocabularies split over 2, 4 and 8 devices, and reads programs.

Run by `test_shards` with the names of methods, or with none for operations
alone; prints JSON, a dict from what was decoded to what was found.
"""

import functools
import json
import re
import sys

import jax
from jax.sharding import AxisType, PartitionSpec
import jax.numpy as jnp
import numpy as np

import decoding_jax as dj
from decoding_jax import sampling
from decoding_jax.kernels import bits, vocabulary
from decoding_jax.speculation import expanders, verifiers
from decoding_jax.testing import exactness

# Bytes that devices of a row may exchange in a step.
MOST_BYTES = 4096
# Divided by none; and so small that the last of four devices has no token.
VOCAB, FEW = 101, 6
ROWS, PROMPT, NEW = 4, 3, 8
MANY, COUNTED = 24_000, 3
# Stated in advance.
WARPED = dj.Sampling(0.9, top_k=20, top_p=0.95, min_p=0.001, typical_p=0.97)
ARRAY = re.compile(r"\b(?:f|bf|s|u|pred)(\d*)\[([\d,]+)\]")
EXCHANGE = re.compile(
    r"= (.*?) (?:all-gather|all-reduce|all-to-all|collective-\w+|"
    r"reduce-scatter)(?:-start)?\(")


@functools.lru_cache(maxsize=None)
def model(size, speed) -> dj.LanguageModel:
  """A model without parameters, which has logits of its own tokens alone."""
  def forward(params, tokens, positions, cache, block, slot, mask):
    del params, positions, cache, slot, mask
    return vocabulary.split(logits(jnp, size, speed, tokens)), block

  return dj.LanguageModel(
      lambda batch, capacity: dj.Cache((), (), jnp.zeros(batch, jnp.int32)),
      forward, size)


def logits(numpy, size, speed, tokens):
  """`[..., V]`, of what follows each token."""
  # Integers: what is rounded alike by all devices.
  order = numpy.arange(size).reshape((1,) * tokens.ndim + (-1,))
  turns = (tokens[..., None] + 1) * (order + 1) * speed % 97
  return 2 * numpy.sin(turns.astype(numpy.float32) * np.float32(np.pi / 48.5))


def generate(shards, method, size, rows, new, warp,
             of_model=lambda lm: (lm, ())):
  """Decodes on so many devices; returns the texts and the program."""
  rng = np.random.default_rng(0)
  prompts = rng.integers(0, size, (rows, PROMPT)).astype(np.int32)
  prompts[:, -1] = prompts[0, -1]

  def decode(keys):
    return dj.generate(
        keys, prompts, np.full(rows, PROMPT), method=method, target=target,
        target_params=params, draft=draft, draft_params=params,
        max_new_tokens=new, sampling=warp)

  (target, params), (draft, _) = (
      of_model(model(size, speed)) for speed in (31, 32))
  keys = jax.random.split(jax.random.key(1), rows)
  program = jax.jit(on_devices(decode, shards)).lower(keys).compile()
  return program(keys), program.as_text()


def on_devices(function, shards):
  """The function where the compiler splits it over so many devices."""
  if shards == 1:
    return function
  mesh = jax.make_mesh((1, shards), ("data", "model"),
                       axis_types=(AxisType.Auto,) * 2)
  return jax.shard_map(function, mesh=mesh, in_specs=PartitionSpec(),
                       out_specs=PartitionSpec(), axis_names={"data"},
                       check_vma=False)


def whole_arrays(text, size, shards):
  """How many operations have an array with all of V, or V filled up."""
  sizes = {size, -(-size // shards) * shards}
  return sum(any(sizes & set(map(int, dims.split(",")))
                 for _, dims in ARRAY.findall(line.split("metadata=")[0]))
             for line in text.splitlines())


def exchanged(text):
  """Bytes that the rules of a step bring to a device, each operation once."""
  results = [EXCHANGE.search(line) for line in text.splitlines()
             if "/while/" in line and not re.search(
               r"op_name=\"[^\"]*(/Decoder/|\(prefill\))", line)]
  return bytes_of(filter(None, results))


def bytes_of(exchanges):
  """Bytes of the results of operations, as matches of `EXCHANGE`."""
  return sum(int(bits or 8) // 8 * int(np.prod([*map(int, dims.split(","))]))
             for x in exchanges for bits, dims in ARRAY.findall(x[1]))


def penalised(lm):
  """The model with processors that remember tokens, as bits and as they are."""
  processors = dj.processors
  return processors.apply(processors.chain(
      [processors.repetition_penalty(1.3, VOCAB),
       processors.no_repeat_ngram(2, VOCAB, 12)]), ((), ()), lm, ())


def compared(name, method, meshes, warp=dj.Sampling(0.9), **given):
  """What each number of devices makes of a method, next to one device."""
  one, _ = generate(1, method, VOCAB, ROWS, NEW, warp, **given)
  for shards in meshes:
    out, text = generate(shards, method, VOCAB, ROWS, NEW, warp, **given)
    yield f"{name} on {shards}", {
        "same": bool((out.tokens == one.tokens).all()),
        "off": float(np.abs(out.log_probs - one.log_probs).max()),
        "whole": whole_arrays(text, VOCAB, shards), "bytes": exchanged(text)}


def differences(size, shards):
  """Operations that find something else on so many devices than on one."""
  rng = np.random.default_rng(size)
  # With equal values, on one device and on two.
  x = np.round(rng.normal(size=(3, size)), 1).astype(np.float32)
  x[1, ::2] = -np.inf
  tokens = rng.permutation(size)[:4].astype(np.int32)
  key, k = jax.random.key(2), min(size, 20)
  words = bits.pack(rng.random(size) < 0.5)

  def each(x):
    probs = jax.nn.softmax(x)
    return {
        "take": (vocabulary.take(x, jnp.broadcast_to(tokens, (3, 4))),
                 vocabulary.take(x[0], tokens),
                 vocabulary.take(x[1], tokens[0])),
        "put": (vocabulary.put(x[0], jnp.append(tokens, size), -jnp.inf),
                vocabulary.put(x[1], tokens, x[0, :4]),
                vocabulary.put(x[2], tokens[1], 0)),
        "top_k": (*vocabulary.top_k(x, k), vocabulary.most_probable(x[1])),
        "gumbel": jax.vmap(lambda key: vocabulary.gumbel(key, size))(
            jax.random.split(key, 2)),
        "gumbel_top_k": tuple(vocabulary.gumbel_top_k(key, x[1], k)),
        "unpack": bits.unpack(words, size),
        "top-p": sampling.nucleus_threshold(probs, 0.7),
        "typical-p": sampling.typical_threshold(jnp.abs(x), probs, 0.3)}

  one, split = (jax.jit(on_devices(each, n))(x) for n in (1, shards))
  same = lambda a, b: np.allclose(a, b, rtol=1e-6, atol=1e-6)
  return [name for name in one if not all(jax.tree.leaves(jax.tree.map(
      same, one[name], split[name])))]


def p_value(method, shards=4):
  """How the first tokens fit their joint distribution."""
  out, _ = generate(shards, method, FEW, MANY, COUNTED + 1, dj.Sampling(0.9))
  table = np.exp(logits(np, FEW, 31, np.arange(FEW)) / 0.9)
  table /= table.sum(axis=1, keepdims=True)
  rng = np.random.default_rng(0)
  last = rng.integers(0, FEW, (MANY, PROMPT))[0, -1]
  texts = np.asarray(out.tokens)[:, PROMPT:PROMPT + COUNTED]
  counts = exactness.count(texts, FEW)
  return exactness.p_value(counts, exactness.joint_distribution(
      table, last, COUNTED))


def sorting():
  """A rule of somebody who does not know of shards: it sorts."""
  recursive = verifiers.recursive(False)

  def whole(uniforms, target, draft, tokens, valid):
    rank, rest = recursive.rule(uniforms, target, draft, tokens, valid)
    return rank, rest / jnp.sort(rest).sum()

  return dj.Method("sorting", verifiers.pair(
      expanders.gumbel_tree((2,)), recursive._replace(rule=whole)), None)


def forgetful(target, draft):
  """A residual that each device normalises by what it has itself."""
  rest = jnp.maximum(target - draft, 0)
  size = -(-len(rest) // vocabulary.shards())
  own = jnp.arange(len(rest)) // size
  return rest / jnp.maximum(jnp.zeros(vocabulary.shards()).at[own].add(
      rest)[own], 1e-9)


METHODS = {
    "plain": dj.methods.autoregressive(),
    "speculative": dj.methods.speculative(2),
    "rsd_c": dj.methods.rsd_c((2, 2)),
    "rsd_s": dj.methods.rsd_s(3, 2),
    "sequoia": dj.methods.sequoia(((2,), (2, 1))),
    "block": dj.methods.speculative(2, "block"),
    "traversal": dj.methods.rsd_s(3, 2, "traversal"),
    "layer": dj.methods.rsd_s(2, 2, "layer"),
    "conditional_ot": dj.methods.rsd_c((2, 2), "conditional_ot"),
    "shared_gumbel": dj.methods.rsd_s(2, 2, "shared_gumbel"),
    "spectr": dj.methods.spectr(2, 2),
    "specinfer": dj.methods.specinfer(2, 2)}


def main(*names):
  results = {"differences": differences(VOCAB, 8) + differences(FEW, 4)}
  for name in names:
    results.update(compared(name, METHODS[name], (2, 4, 8)))
  if names:
    results.update(programs())
  print(json.dumps(results))


def programs():
  """What was found of warps and rules, right ones and wrong ones."""
  results = dict([
      *compared("processed", METHODS["rsd_s"], (4,), WARPED,
                of_model=penalised), *compared("sorting", sorting(), (4,))])
  results["p"] = p_value(METHODS["rsd_s"])
  right, sampling.residual = sampling.residual, forgetful
  results["control p"] = p_value(dj.methods.rsd_s(3, 3))
  sampling.residual = right
  return results


if __name__ == "__main__":
  main(*sys.argv[1:])
