"""Checks of the fields of `types.Method`, `types.LanguageModel` and others."""

import functools
import inspect
import math
import numbers
from typing import Any, Callable, NamedTuple

from decoding_jax.types import (Decoder, Drafter, Draws, Expander, FreeLayout,
                                Halves, Head, LanguageModel, Layout,
                                LogitsProcessor, Method, Pair, Reward, Verifier)
from decoding_jax.validation import values


class _Condition(NamedTuple):
  """A condition on a field."""
  fits: Callable[[Any], bool]  # `value -> bool`
  words: str  # what is allowed, for errors


def _instance(needed, words):
  return _Condition(lambda value: isinstance(value, needed), words)


def _function(*names):
  return _Condition(lambda value: callable(value) and _takes(value, names),
                    f"a function of ({', '.join(names)})")


# Cached: it takes longer than all other checks of a call of `generate`.
@functools.lru_cache(maxsize=None)
def _takes(function, names):
  """Tells whether a function takes these arguments, as far as Python knows."""
  try:
    signature = inspect.signature(function)
  except (TypeError, ValueError):
    return True
  try:
    signature.bind(*names)
  except TypeError:
    return False
  return True


def _integer(least):
  return _Condition(lambda value: values.is_integer(value) and value >= least,
                    f"an integer from {least} on")


def _or_none(condition):
  return _Condition(lambda value: value is None or condition.fits(value),
                    f"{condition.words}, or None,")


_FLAG = _instance(bool, "True or False")
_DRAWS = _instance(Draws, "one of dj.Draws, such as "
                   "dj.Draws.WITHOUT_REPLACEMENT,")
_DECODES = _or_none(_instance(
    (Pair, Decoder), "what dj.pair makes, or a dj.Decoder"))
_FIELDS = {
    LanguageModel: {
        "init_cache": _function("batch", "capacity"),
        "forward": _function("params", "tokens", "positions", "cache", "block",
                             "slot", "mask"),
        "vocab_size": _integer(1),
        "max_length": _integer(0),
        "extra_ids": _integer(0),
        "after_prompt": _or_none(_function("params", "cache")),
        "abstract_params": _or_none(_function()),
        "halves": _or_none(_instance(Halves, "a Halves")),
        "forward_each": _or_none(_function(
            "params", "tokens", "positions", "cache", "block", "slot",
            "mask")),
        "models": _instance(tuple, "a tuple of models"),
        "target_view": _or_none(_function("cache")),
        "reads_shared": _FLAG, "packs": _FLAG},
    Head: {
        "init": _function("batch", "slots"),
        "read": _function("params", "target_params", "state", "features",
                          "tokens", "count"),
        "start": _function("params", "target_params", "state", "root",
                           "nodes"),
        "logits": _function("params", "target_params", "state", "draft",
                            "tree", "level", "nodes"),
        "vocab_size": _integer(1),
        "widths": _instance(tuple, "a tuple of integers"),
        "forwards": _function("depth"),
        "depth": _integer(0), "max_length": _integer(0),
        "abstract_params": _or_none(_function())},
    LogitsProcessor: {
        "init": _function("params"),
        "advance": _function("params", "state", "token"),
        "process": _function("params", "state", "logits"),
        "reads_prompt": _FLAG},
    Reward: {
        "init": _function("params", "constraint", "prompt", "length"),
        "advance": _function("params", "constraint", "state", "tokens",
                             "valid"),
        "value": _function("params", "constraint", "state"),
        "maximum": _Condition(
            lambda value: isinstance(value, numbers.Real) and
            not math.isnan(value), "a number, or inf for none,")},
    Method: {"name": _instance(str, "a string"),
             "sampled": _DECODES, "greedy": _DECODES},
    Pair: {"drafter": _instance(Drafter, "a dj.Drafter"),
           "verifier": _instance(Verifier, "a dj.Verifier")},
    Drafter: {
        "layout": _instance((Layout, FreeLayout),
                            "a dj.Layout or dj.FreeLayout"),
        "init": _function("context", "state"),
        "propose": _function("keys", "context", "state"),
        "observe": _function("context", "before", "after", "seen"),
        "calls": _integer(0), "draws": _DRAWS,
        "score": _or_none(_function("context", "state", "tree", "pending")),
        "draft_calls": _or_none(_function("draft"))},
    Expander: {
        "layout": _instance(Layout, "a dj.Layout"),
        "init": _function(),
        "expand": _function("key", "level", "log_probs", "valid", "state"),
        "draws": _DRAWS},
    Verifier: {
        "rule": _or_none(_function("uniforms", "target", "draft", "children",
                                   "valid")),
        "takes": _Condition(
            lambda value: isinstance(value, frozenset) and
            all(map(_DRAWS.fits, value)), "a frozenset of dj.Draws"),
        "walk": _or_none(_function("key", "layout", "tree", "logits",
                                   "warper"))},
    Decoder: {
        "init": _function("context", "state"),
        "step": _function("context", "state"),
        "max_slots_ahead": _integer(0), "max_samples_per_node": _integer(1),
        "needs_draft": _FLAG, "takes_head": _FLAG, "needs_reward": _FLAG,
        "needs_features": _FLAG,
        "step_with_tree": _or_none(_function("context", "state"))},
}


def check(name: str, needed, value, optional: bool = False) -> None:
  """Checks the type of an argument and, recursively, its fields."""
  if value is None and optional:
    return
  if not isinstance(value, needed):
    raise ValueError(f"{name} is of type {type(value).__name__}: a "
                     f"dj.{needed.__name__} is needed"
                     f"{', or None' if optional else ''}.")
  if needed in _FIELDS:
    try:
      hash(value)
    except TypeError as e:
      raise ValueError(f"{name} holds what cannot be a static argument: {e}."
                       ) from e
    _check_fields(name, needed, value)


def _check_fields(name, needed, value):
  for field, allowed in _FIELDS[needed].items():
    given = getattr(value, field)
    if not allowed.fits(given):
      what = (f" is of type {type(given).__name__}" if isinstance(given, tuple)
              else f"={given!r}")
      raise ValueError(f"{name}.{field}{what}: {allowed.words} is needed.")
    if type(given) in _FIELDS:
      _check_fields(f"{name}.{field}", type(given), given)
  if needed is Verifier and (value.rule is None) == (value.walk is None):
    has = ("has neither a rule nor" if value.walk is None else
           "has both a rule and")
    raise ValueError(f"{name} {has} a walk: one of them is needed.")
