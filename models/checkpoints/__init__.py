"""Loading, saving and converting checkpoints: Orbax's and Hugging Face's."""

from models.checkpoints.load_save import (architecture, check_replaceable,
                                          CONFIG, convert, export, load,
                                          load_config, load_masked, METADATA,
                                          PARAMS, quantize, save,
                                          weights_of)
from models.huggingface.convert import abstract_params, from_hf, to_hf

__all__ = [
    "CONFIG", "METADATA", "PARAMS", "abstract_params", "architecture",
    "check_replaceable", "convert", "export", "from_hf", "load", "load_config",
    "load_masked", "quantize", "save", "to_hf", "weights_of",
]
