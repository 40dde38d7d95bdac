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

from decoding_jax.processors import llguidance_engine, xgrammar_engine
from decoding_jax.processors.automaton_store import stored
from decoding_jax.processors.budget_forcing import budget_forcing
from decoding_jax.processors.choices import choice, token_choice
from decoding_jax.processors.host_engine import (HostGrammar, HostTimes,
                                                 host_grammar, host_times)
from decoding_jax.processors.model_wrapper import apply, chain
from decoding_jax.processors.momentum import momentum
from decoding_jax.processors.patterns import json_schema, regex
from decoding_jax.processors.penalties import (min_new_tokens, no_repeat_ngram,
                                               occurrence_penalty,
                                               repetition_penalty)
from decoding_jax.processors.sparse_automaton import SparseAutomaton
from decoding_jax.processors.token_automaton import (Automaton, automaton,
                                                     from_transitions,
                                                     stop_strings, table)
from decoding_jax.types import AppliedParams

__all__ = [
    "AppliedParams", "Automaton", "HostGrammar", "HostTimes", "SparseAutomaton",
    "apply", "automaton", "budget_forcing", "chain", "choice",
    "from_transitions", "host_grammar", "host_times", "json_schema",
    "llguidance_engine", "min_new_tokens", "momentum", "no_repeat_ngram",
    "occurrence_penalty", "regex", "repetition_penalty", "stop_strings",
    "stored", "table", "token_choice", "xgrammar_engine",
]
