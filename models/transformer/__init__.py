"""Transformer language models: configuration, forward, parameters."""

from models.transformer.architecture import Config, DTYPES
from models.transformer.early_exit import early_exit, first_layers
from models.transformer.language_models import (
    abstract_params, bidirectional_logits, causal_logits, causal_pass, init,
    language_model, with_features, with_prompts)
from models.transformer.layer_stack import stack_layers, unstack_layers
from models.transformer.parameters import num_params, param_name
from models.transformer.sink_window import recent_window

__all__ = [
    "Config", "DTYPES", "abstract_params", "bidirectional_logits",
    "causal_logits", "causal_pass", "early_exit", "first_layers", "init",
    "language_model", "num_params", "param_name", "recent_window",
    "stack_layers", "unstack_layers", "with_features", "with_prompts",
]
