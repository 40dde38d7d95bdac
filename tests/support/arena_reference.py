"""Best-first search and tree search of one row in plain Python.

Heaps, lists and dicts in place of arrays; rows are those of
`lookahead_reference`. Sums are of float32, so that equal scores are equal.
"""

import heapq
import math

import numpy as np

from support import lookahead_reference as reference

F = np.float32


def ranked(logits, count):
  """Returns the most probable tokens, the best first."""
  return sorted(range(len(logits)), key=lambda x: (-logits[x], x))[:count]


def step_of(row, text, first, steps, pause=()):
  """Adds a token and greedy ones, until a step ends; the longer text."""
  text = text + [first]
  while len(text) and steps > 1 and not reference.ended(row, text) and (
      text[-1] not in pause):
    text = reference.follow(row, row.target, text, 1)
    steps -= 1
  return text


def a_star(row, k, steps, expansions, weight=1.0, pause=()):
  """Returns the text, and the numbers of nodes as they were expanded."""
  nodes, order = [(list(row.prompt), F(0))], []
  heap, result = [(F(0), 0)], None
  while heap and result is None and len(order) < expansions:
    _, number = heapq.heappop(heap)
    text, cost = nodes[number]
    if reference.ended(row, text):
      result = text
      break
    order.append(number)
    cost = cost + F(-row.value(text))
    for token in ranked(row.target(text), k):
      child = step_of(row, text, token, steps, pause)
      heapq.heappush(heap, (F(F(weight) * cost) + F(-row.value(child)),
                            len(nodes)))
      nodes.append((child, cost))
  if result is None:
    # What is complete first, then the best partial text.
    heap.sort(key=lambda x: (not reference.ended(row, nodes[x[1]][0]), x))
    result = reference.follow(row, row.target, nodes[heap[0][1]][0], row.new)
  return result[len(row.prompt):], order


def budget(value, depth, greedy, confidence=0.9, most=10):
  """The budget of a node of `lite_search`; of the root, depth is 1."""
  if value <= 0:
    return 0
  value = min((value + greedy / depth) / (1 + 1 / depth), 1)
  count = 1
  while count < most and 1 - (1 - value)**count <= confidence:
    count += 1
  return min(max(round(count / depth), 2), most)


def lite_search(row, steps, expansions, sample, min_value=0.8, max_leaves=5):
  """As `a_star`; `sample` is `(expansion, i, text) -> token`."""
  whole = reference.follow(row, row.target, row.prompt, row.new)
  greedy = row.value(whole)
  text = list(row.prompt)
  nodes = [[text, row.value(text), 1, budget(row.value(text), 1, greedy), 0]]
  order, is_leaf = [], lambda node: reference.ended(row, node[0])
  while len(order) < expansions:
    leaves = [node[1] for node in nodes if is_leaf(node)]
    free = [i for i, node in enumerate(nodes)
            if is_leaf(node) or node[4] < node[3]]
    if not free or len(leaves) >= max_leaves or (
        leaves and max(leaves) > max(min_value, greedy - 0.01)):
      break
    number = max(free, key=lambda i: (nodes[i][1], -i))
    text, value, depth, _, done = nodes[number]
    if is_leaf(nodes[number]) or (number and value < 0.01):
      break
    child = list(text)
    for i in range(steps):
      if i and reference.ended(row, child):
        break
      child.append(int(np.argmax(row.target(child))) if not done else
                   sample(len(order), i, child))
    order.append(number)
    nodes[number][4] += 1
    value = row.value(child)
    nodes.append([child, value, depth + 1, budget(value, depth + 1, greedy), 0])
  best = max((node for node in nodes if is_leaf(node)), key=lambda x: x[1],
             default=[whole, -math.inf])
  result = whole if greedy > best[1] else best[0]
  return result[len(row.prompt):], order


def pg_td(row, k, simulations, maximum=math.inf, c=4.0, base=10.0):
  """Returns the text, and the text of the node of each simulation."""
  nodes, order, best = {}, [], (-math.inf, None)

  def expand(text):
    log_probs = reference.log_softmax(row.target(text))
    nodes[tuple(text)] = dict(visits=1, children=[
        dict(text=[*text, x], p=math.exp(log_probs[x]), returns=[])
        for x in ranked(log_probs, k)])

  def score(node, child):
    weight = math.log((node["visits"] + base + 1) / base) + c
    bonus = weight * child["p"] * math.sqrt(math.log(node["visits"])) / (
        1 + len(child["returns"]))
    return max(child["returns"], default=0) + bonus

  expand(list(row.prompt))
  for _ in range(simulations):
    text, way = list(row.prompt), []
    while tuple(text) in nodes:
      node = nodes[tuple(text)]
      child = max(node["children"], key=lambda x, node=node: score(node, x))
      way.append((node, child))
      text = child["text"]
    if not reference.ended(row, text):
      expand(text)
      way.append((nodes[tuple(text)], dict(returns=[])))
    order.append(text[len(row.prompt):])
    whole = reference.follow(row, row.target, text, row.new)
    value = row.value(whole)
    if value > best[0]:
      best = value, whole
    for node, child in way:
      node["visits"] += 1
      child["returns"].append(value)
    if best[0] >= maximum:
      break
  return best[1][len(row.prompt):], order
