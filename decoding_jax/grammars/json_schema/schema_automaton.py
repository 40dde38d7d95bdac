"""JSON schemas as automata over bytes.

Values of any type and recursive references are followed a few levels deep, less
if the automaton becomes too large; see `_BUDGETS`. So each text is valid, but
not every valid text is allowed.
"""

import dataclasses
import functools
import gc
import json
import time
from typing import NamedTuple

from decoding_jax.grammars import finite_automata, regex
from decoding_jax.grammars.finite_automata import Dfa, Nfa, TooLarge
from decoding_jax.grammars.json_schema import (json_numbers, json_strings,
                                               schema_branches, schema_source,
                                               schema_unique)
from decoding_jax.grammars.json_schema.schema_source import (Endless, Source,
                                                             fail)
from decoding_jax.grammars.json_schema.schema_types import (Array, Boolean,
                                                            Null, Number,
                                                            Object, String,
                                                            Value, is_never)

# Patterns of names in one object: each subset of them is a class of names.
_MAX_PATTERNS = 3
_WHITESPACE = "[ ]?"


class _Budget(NamedTuple):
  """Levels of values of any type, and most characters, items, properties."""
  levels: int
  most: int | None


_BUDGETS = (_Budget(3, None), _Budget(2, 256), _Budget(1, 64), _Budget(1, 16))


@dataclasses.dataclass
class _Build:
  """The parts of an automaton under construction."""
  source: Source  # the schema
  nfa: Nfa  # over bytes
  budget: _Budget  # of this attempt
  whitespace: Dfa  # over characters, what may be between parts
  levels: int  # remaining levels of values of any type


def of_schema(schema, whitespace: str | None = None, limit: int | None = None,
              seconds: float = float("inf")) -> Dfa:
  """Returns the automaton over bytes of JSON texts of a schema. `whitespace` is
  the pattern between parts; None: at most one blank. Raises
  `schema_source.Unsupported` naming the keyword and its position, TooLarge
  beyond `limit` states or `seconds`."""
  limit = limit or finite_automata.MAX_STATES
  between = finite_automata.intersect(regex.search(
      f"^(?:{_WHITESPACE if whitespace is None else whitespace})$"),
                                      regex.search(r"^[ \t\n\r]*$"))
  if finite_automata.is_empty(between):
    raise ValueError(f"whitespace={whitespace!r}: a pattern of blanks, tabs "
                     "and line ends is needed.")
  deadline = time.monotonic() + seconds
  collects = gc.isenabled()
  gc.disable()  # There are many small objects, and no circles among them.
  try:
    for budget in _BUDGETS:
      try:
        return _attempt(schema, between, budget, limit, deadline)
      except TooLarge:
        if budget == _BUDGETS[-1] or time.monotonic() > deadline:
          raise
  finally:
    if collects:
      gc.enable()


def _attempt(schema, whitespace, budget, limit, deadline):
  build = _Build(Source(schema), Nfa(limit=8 * limit, deadline=deadline),
                 budget, whitespace, budget.levels)
  start = finite_automata.add_state(build.nfa)
  end = _add(build, (schema_source.Part(schema),), start)
  if end is None:
    fail("#", "no value is valid.")
  return finite_automata.determinise(build.nfa, start, {end}, limit)


def _add(build, parts, start):
  """Adds the values of parts; returns the state after, None if none fits."""
  if not parts:
    return _add_anything(build, start)
  branches = schema_branches.of_parts(build.source, parts)
  end, error = None, None
  for branch in branches:
    # A branch that turns out to be endless leaves arcs that lead nowhere.
    begin = finite_automata.add_state(build.nfa)
    try:
      after = _ADDERS[type(branch)](build, branch, begin)
    except Endless as e:
      error = e
      continue
    if after is not None:
      end = finite_automata.add_state(build.nfa) if end is None else end
      build.nfa.empty[start].append(begin)
      build.nfa.empty[after].append(end)
  if end is None and error:
    raise error
  return end


def _add_anything(build, start):
  """Adds values of any type, nested as deep as the budget says."""
  build.levels -= 1
  end = finite_automata.add_state(build.nfa)
  branches = schema_branches.any_branches()
  for branch in branches if build.levels >= 0 else branches[:4]:
    build.nfa.empty[_ADDERS[type(branch)](build, branch, start)].append(end)
  build.levels += 1
  return end


def _add_value(build, branch, start):
  value, nfa = branch.value, build.nfa
  if isinstance(value, str):
    return json_strings.add_literal(nfa, start, value)
  if isinstance(value, (list, dict)):
    is_list = isinstance(value, list)
    state = _between(build, finite_automata.add_text(
        nfa, start, b"[" if is_list else b"{"))
    for i, x in enumerate(value):
      state = _comma(build, state) if i else state
      if not is_list:
        state = _colon(build, json_strings.add_literal(nfa, state, x))
      state = _add_value(build, Value("", x if is_list else value[x]), state)
    return finite_automata.add_text(nfa, _between(build, state),
                                    b"]" if is_list else b"}")
  return finite_automata.add_text(nfa, start, json.dumps(value).encode())


def _add_boolean(build, branch, start):
  del branch
  end, other = (_add_value(build, Value("", x), start) for x in (True, False))
  build.nfa.empty[other].append(end)
  return end


def _add_number(build, branch, start):
  try:
    dfa = json_numbers.of_constraints(branch)
  except json_numbers.Unsupported as e:
    fail("#", str(e))
  return finite_automata.add_dfa(build.nfa, start, dfa)


def _add_string(build, branch, start):
  most = build.budget.most
  if most is not None and branch.most is not None and branch.most > most:
    branch = dataclasses.replace(branch, most=max(most, branch.least))
  dfa = json_strings.of_constraints(branch)
  if dfa is not None and finite_automata.is_empty(dfa):
    return None
  return json_strings.add_string(build.nfa, start, dfa)


def _add_array(build, branch, start):
  """Adds lists: a copy of its parts for each item that is counted."""
  nfa, least, most = build.nfa, branch.least, branch.most
  cut = build.budget.most
  if cut is not None and most is not None:
    most = min(most, max(cut, least))
  if most is not None and least > most:
    return None
  state = _between(build, finite_automata.add_text(nfa, start, b"["))
  if branch.unique:
    end = _add_unique(build, branch, most, state)
    return None if end is None else finite_automata.add_text(
        nfa, _between(build, end), b"]")
  end = finite_automata.add_state(nfa)
  count = 0
  while True:
    if count >= least:
      nfa.empty[state].append(end)
    if count == most:
      break
    begin = _comma(build, state) if count else state
    if begin == state:  # The loop below leads back to it.
      begin = finite_automata.add_state(nfa)
      nfa.empty[state].append(begin)
    after = _add_or_none(build, schema_branches.item(branch, count), begin)
    if after is None:
      if count < least:
        return None
      break
    count, state = count + 1, after
    if most is None and count >= max(least, len(branch.first) + 1):
      nfa.empty[state].append(end)
      nfa.empty[_comma(build, state)].append(begin)
      break
  return finite_automata.add_text(nfa, _between(build, end), b"]")


def _add_unique(build, branch, most, start):
  """Adds items of which none is repeated; None if they are too few."""
  nfa = build.nfa
  items = schema_unique.items(build.source, branch, most, (
      schema_unique.MAX_SETS if build.budget.most is None else 0))
  if branch.least > items.most:
    return None
  size, whole = len(items.values), (1 << len(items.values)) - 1
  end = finite_automata.add_state(nfa)
  if not branch.least:
    nfa.empty[start].append(end)
  # Keys: bits of the values that may not come any more, and the item's index.
  begins, afters = {(0, 0): start}, {}
  waiting = [(0, 0)] if items.most else []
  for used, index in waiting:
    begin = begins[used, index]
    for i in range(size):
      if used >> i & 1:
        continue
      if i in items.at(index):
        after = used | (2 << i) - 1 if items.ordered else used | 1 << i
        key = after, min(index + 1, items.cap)
        if key not in afters:
          afters[key] = finite_automata.add_state(nfa)
          if key[1] >= branch.least:
            nfa.empty[afters[key]].append(end)
          if after != whole and (items.most == size or key[1] < items.most):
            nfa.empty[_comma(build, afters[key])].append(
                _state_at(nfa, begins, waiting, key))
        nfa.empty[_add_value(build, items.values[i], begin)].append(afters[key])
      if items.ordered:
        if i + 1 < size:
          nfa.empty[begin].append(
              _state_at(nfa, begins, waiting, (used | (2 << i) - 1, index)))
        break
  return end


def _state_at(nfa, states, waiting, key):
  """Returns the state of a key; a new one waits for its arcs."""
  if key not in states:
    states[key] = finite_automata.add_state(nfa)
    waiting.append(key)
  return states[key]


def _add_or_none(build, parts, start):
  """As `_add`; None as well for parts that are left out as endless. Where they
  are needed, the whole is not possible either."""
  if is_never(parts):
    return None
  try:
    return _add(build, parts, start)
  except Endless:
    return None


class _Progress(NamedTuple):
  """Progress within an object."""
  first: bool = True  # whether no property was there yet
  # Different names so far, at least, up to the least number needed.
  names: int = 0
  count: int = 0  # properties so far, up to the number allowed
  other: bool = False  # whether one was there of the names that may come twice


def _add_object(build, branch, start):
  """Adds objects: their properties in order, then properties of other names."""
  nfa, most = build.nfa, branch.most
  if most is not None and branch.least > most:
    return None
  names = list(dict.fromkeys([*branch.properties, *branch.required]))
  state = _between(build, finite_automata.add_text(nfa, start, b"{"))
  states = {_Progress(): state}
  for name in names:
    states = _add_property(build, branch, name, states)
    if not states:
      return None
  states = _add_others(build, branch, names, states)
  end = finite_automata.add_state(nfa)
  closable = [x for x in states if x.names >= branch.least]
  for progress in closable:
    nfa.empty[states[progress]].append(end)
  return finite_automata.add_text(
      nfa, _between(build, end), b"}") if closable else None


def _next(branch, progress, other=False):
  """Returns the progress after one more property; None if one too many."""
  if branch.most is not None and progress.count >= branch.most:
    return None
  more = not other or not progress.other
  return _Progress(False, min(progress.names + more, branch.least),
                   progress.count + (branch.most is not None),
                   other and branch.least > 0 or progress.other)


def _add_property(build, branch, name, states):
  """Returns the states after a property, which may be left out if allowed."""
  nfa, needed = build.nfa, name in branch.required
  after = {} if needed else dict(states)
  parts = schema_branches.property_parts(branch, name)
  if is_never(parts) or branch.names and not (
      schema_branches.conforms(build.source, name, schema_branches.of_parts(
          build.source, branch.names))):
    return after
  begins: dict[_Progress, int] = {}
  for progress, state in states.items():
    following = _next(branch, progress)
    if following is not None:
      begin = begins.get(following)
      if begin is None:
        begin = begins[following] = finite_automata.add_state(nfa)
      nfa.empty[state if progress.first else _comma(build, state)].append(begin)
  for following, begin in begins.items():
    state = _colon(build, json_strings.add_literal(nfa, begin, name))
    end = _add_or_none(build, parts, state)
    if end is None:
      return after
    if following in after:
      # Not an arc into that state itself: earlier properties lead there too.
      joined = finite_automata.add_state(nfa)
      nfa.empty[after[following]].append(joined)
      nfa.empty[end].append(joined)
      end = joined
    after[following] = end
  return after


def _add_others(build, branch, names, states):
  """Returns the states after zero or more properties of other names."""
  groups = _other_names(build, branch, names)
  if not groups:
    return states
  nfa, after = build.nfa, {}
  for progress, state in states.items():
    if progress not in after:
      after[progress] = finite_automata.add_state(nfa)
    nfa.empty[state].append(after[progress])
  waiting, begins = list(after), {}
  for progress in waiting:
    following = _next(branch, progress, other=True)
    if following is None:
      continue
    known = following in begins
    begin = begins.setdefault(following, finite_automata.add_state(nfa))
    nfa.empty[after[progress] if progress.first else
              _comma(build, after[progress])].append(begin)
    for keys, parts in () if known else groups:
      end = _add_or_none(build, parts, _colon(
          build, json_strings.add_string(nfa, begin, keys)))
      if end is not None:
        if following not in after:
          after[following] = finite_automata.add_state(nfa)
          waiting.append(following)
        nfa.empty[end].append(after[following])
  return after


def _other_names(build, branch, names):
  """Returns (automaton of names, parts of their values) of other names. Each
  name has one spelling, so that none equals one of `names`."""
  if len(branch.patterns) > _MAX_PATTERNS:
    fail("#", f"more than {_MAX_PATTERNS} patterns of names in one object are "
         "not supported.")
  if not names and not branch.names and not branch.patterns:
    return [] if is_never(branch.others) else [
        (None, branch.others)]
  free = json_strings.of_length(0, None)
  allowed = json_strings.without(free, json_strings.of_texts(names))
  if branch.names:
    allowed = finite_automata.intersect(
        allowed, _names_of(build, branch.names))
  groups = [(allowed, ())]
  for pattern, parts in branch.patterns:
    dfa = json_strings.of_pattern(pattern)
    groups = [group for keys, schemas in groups for group in (
        (finite_automata.intersect(keys, dfa), (*schemas, parts)),
        (json_strings.without(keys, dfa), schemas))]
  return [(keys, tuple(x for parts in schemas for x in parts)
           if schemas else branch.others) for keys, schemas in groups
          if not finite_automata.is_empty(keys) and not (
              not schemas and is_never(branch.others))]


def _names_of(build, parts):
  """Returns the automaton of names, over characters."""
  nfa = Nfa()
  start, end = finite_automata.add_state(nfa), finite_automata.add_state(nfa)
  for branch in schema_branches.of_parts(build.source, parts):
    if isinstance(branch, Value) and isinstance(branch.value, str):
      dfa = json_strings.of_texts([branch.value])
    elif isinstance(branch, String):
      dfa = json_strings.of_constraints(branch) or (
          json_strings.of_length(0, None))
    else:
      continue
    after = finite_automata.add_dfa(nfa, start, dfa)
    if after is not None:
      nfa.empty[after].append(end)
  return finite_automata.determinise(nfa, start, {end})


def _between(build, start):
  """Returns the state after what may be between two parts."""
  return finite_automata.add_dfa(build.nfa, start, build.whitespace)


def _mark(mark, build, start):
  """Returns the state after a mark, and what may be around it."""
  state = finite_automata.add_text(build.nfa, _between(build, start), mark)
  return _between(build, state)


_comma, _colon = (functools.partial(_mark, mark) for mark in (b",", b":"))


_ADDERS = {Null: lambda build, branch, start: _add_value(
               build, Value("", None), start),
           Boolean: _add_boolean, Number: _add_number,
           String: _add_string, Array: _add_array, Object: _add_object,
           Value: _add_value}
