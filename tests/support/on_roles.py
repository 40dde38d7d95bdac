"""Decodes on groups of devices, one that drafts and one that verifies."""

import functools
import json

import jax
import numpy as np

import decoding_jax as dj
from decoding_jax import roles
from decoding_jax.speculation import rounds
from decoding_jax.testing import exactness
from support import tiny_models as tiny

METHODS = dj.methods.pearl(3), dj.methods.ssd(2, 2)
SHAPES = {"2": (2,), "2+2": (2, 2), "4+4": (2, 4)}
V, END, ROWS, LENGTH = 6, 5, 24_000, 4
TABLES = exactness.random_tables(V)
MODELS = tiny.arguments(tiny.tables(*TABLES))


def stale(method):
  """A control: tokens of the draft before, with distributions of this one."""
  parts = method.sampled.rounds

  def propose(context, drafting):
    chain, new = parts.propose(context, drafting)
    old = drafting.carry.chain
    return chain.replace(tokens=old), new.replace(
        carry=new.carry.replace(chain=old))

  return dj.Method("stale", rounds.decoder(
      parts._replace(propose=propose), method.sampled.max_slots_ahead), None)


def mesh_of(shape):
  devices = np.array(jax.devices()[:np.prod(shape)]).reshape(shape)
  return jax.sharding.Mesh(devices, (roles.ROLE, roles.DATA)[:len(shape)])


def same(method, mesh, temperature):
  """Whether texts and counts are those of one program."""
  outs = [generate(
      jax.random.key(3), np.arange(64)[:, None].astype(np.int32) % V,
      np.ones(64, np.int32), method=method, max_new_tokens=20, eos_id=END,
      sampling=dj.Sampling(temperature), **MODELS) for generate in (
          dj.generate, functools.partial(roles.generate, mesh=mesh))]
  return all(jax.tree.leaves(jax.tree.map(
      lambda x, y: bool((np.asarray(x) == np.asarray(y)).all()), *outs)))


def p_value(method, mesh):
  """Of texts, by `dj.testing`."""
  def sampler(key, prompts):
    return roles.generate(
        key, prompts, np.ones(len(prompts), np.int32), mesh=mesh, method=method,
        max_new_tokens=LENGTH, **MODELS).tokens[:, 1:]

  return dj.testing.check(sampler, TABLES[0], rows=ROWS, length=LENGTH).p_value


def devices_of_parts(mesh):
  """Devices of all that the target scores with, and the drafter drafts with."""
  results = {}

  def spy(name, program):
    def call(mesh, decoder, *trees):
      results[name] = sorted({device.id for x in jax.tree.leaves(trees)
                              for device in x.devices()})
      return program(mesh, decoder, *trees)
    return call

  for name in ("_score", "_prepare"):
    setattr(roles, name, spy(name, getattr(roles, name)))
  same(METHODS[1], mesh, 1.0)
  return results


def main():
  results = {"same": {}, "p": {}}
  for name, shape in SHAPES.items():
    mesh = mesh_of(shape)
    for method in METHODS:
      at = f"{method.name} on {name}"
      results["same"][at] = [same(method, mesh, x) for x in (0.0, 1.0)]
      if name != "4+4":
        results["p"][at] = p_value(method, mesh)
  results["control p"] = p_value(stale(METHODS[1]), mesh_of((2, 2)))
  results["devices"] = devices_of_parts(mesh_of((2, 2)))
  print(json.dumps(results))


if __name__ == "__main__":
  main()
