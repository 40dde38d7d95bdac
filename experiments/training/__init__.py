"""Training of models, from losses to the whole run."""
