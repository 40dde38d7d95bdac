"""Logits processors: distributions that depend on the generated text.

    processors = dj.processors
    pieces = tokenizers.pieces(tokenizer)               # bytes of V tokens
    machine = processors.regex(r"[A-Z][a-z]+, [0-9]{4}", pieces, eos_id)
    target, target_params = processors.apply(
        processors.automaton(), machine, target, target_params)
    draft, draft_params = processors.apply(
        processors.automaton(), machine, draft, draft_params)
    dj.generate(..., eos_id=eos_id)                     # by any method

A processor of your own is three pure functions, see `dj.LogitsProcessor`.
"""

import typing

from decoding_jax import lazy

if typing.TYPE_CHECKING:  # What `lazy` imports, for tools that read this.
  from decoding_jax.grammars.automaton_store import stored
  from decoding_jax.grammars.choices import choice, token_choice
  from decoding_jax.grammars.engines import llguidance_engine, xgrammar_engine
  from decoding_jax.grammars.engines.host_engine import (HostGrammar, HostTimes,
                                                         host_grammar,
                                                         host_times)
  from decoding_jax.grammars.patterns import json_schema, regex
  from decoding_jax.grammars.sparse_automaton import SparseAutomaton
  from decoding_jax.grammars.token_automaton import (Automaton, automaton,
                                                     from_transitions,
                                                     stop_strings, table)
  from decoding_jax.processors.budget_forcing import budget_forcing
  from decoding_jax.processors.model_wrapper import apply, chain
  from decoding_jax.processors.momentum import momentum
  from decoding_jax.processors.penalties import (min_new_tokens,
                                                 no_repeat_ngram,
                                                 occurrence_penalty,
                                                 repetition_penalty)
  from decoding_jax.types import AppliedParams

__all__ = [
    "AppliedParams", "Automaton", "HostGrammar", "HostTimes", "SparseAutomaton",
    "apply", "automaton", "budget_forcing", "chain", "choice",
    "from_transitions", "host_grammar", "host_times", "json_schema",
    "llguidance_engine", "min_new_tokens", "momentum", "no_repeat_ngram",
    "occurrence_penalty", "regex", "repetition_penalty", "stop_strings",
    "stored", "table", "token_choice", "xgrammar_engine",
]

lazy.attach(globals(), {
    "model_wrapper": ("apply", "chain"), "budget_forcing": ("budget_forcing",),
    "momentum": ("momentum",), "penalties": (
        "min_new_tokens", "no_repeat_ngram", "occurrence_penalty",
        "repetition_penalty"),
    ".types": ("AppliedParams",),
    ".grammars.automaton_store": ("stored",),
    ".grammars.choices": ("choice", "token_choice"),
    ".grammars.engines.llguidance_engine": (),
    ".grammars.engines.xgrammar_engine": (),
    ".grammars.engines.host_engine": (
        "HostGrammar", "HostTimes", "host_grammar", "host_times"),
    ".grammars.patterns": ("json_schema", "regex"),
    ".grammars.sparse_automaton": ("SparseAutomaton",),
    ".grammars.token_automaton": (
        "Automaton", "automaton", "from_transitions", "stop_strings", "table"),
})
