"""Architecture sizes by name."""

from models.transformer import architecture

PRESETS = {
    # The shipped pair; its tokenizer has 2,000 entries. Trained on windows of
    # up to 256 tokens: the loss is flat up to position 320 and rises after it.
    "python-target": architecture.Config(
        vocab_size=2000, dim=192, num_layers=7, num_heads=6, num_kv_heads=3,
        head_dim=32, hidden_dim=512, max_length=320),
    "python-draft": architecture.Config(
        vocab_size=2000, dim=96, num_layers=2, num_heads=3, num_kv_heads=3,
        head_dim=32, hidden_dim=192, max_length=320),
    # The shipped pair that writes a sentence from a few words; trained on rows
    # of up to 96 tokens.
    "commongen-target": architecture.Config(
        vocab_size=2000, dim=256, num_layers=5, num_heads=8, num_kv_heads=4,
        head_dim=32, hidden_dim=928, max_length=128),
    "commongen-draft": architecture.Config(
        vocab_size=2000, dim=128, num_layers=2, num_heads=4, num_kv_heads=4,
        head_dim=32, hidden_dim=320, max_length=128),
    # The shipped pair that answers in a dialogue, and the reward that it is
    # steered by: one number a token, what a dialogue up to there is worth.
    "harmless-reward": architecture.Config(
        vocab_size=2000, dim=96, num_layers=2, num_heads=3, num_kv_heads=3,
        head_dim=32, hidden_dim=192, max_length=320, tie_embeddings=False,
        outputs=1),
    "harmless-target": architecture.Config(
        vocab_size=2000, dim=192, num_layers=4, num_heads=6, num_kv_heads=3,
        head_dim=32, hidden_dim=512, max_length=320),
    "harmless-draft": architecture.Config(
        vocab_size=2000, dim=96, num_layers=2, num_heads=3, num_kv_heads=3,
        head_dim=32, hidden_dim=192, max_length=320),
    # The shipped masked-diffusion model of list operations and grids: rows of
    # 20 + 16 tokens. The last entry of the vocabulary is the mask.
    "canvas-tasks": architecture.Config(
        vocab_size=56, dim=160, num_layers=4, num_heads=5, num_kv_heads=5,
        head_dim=32, hidden_dim=432, max_length=64, positions="learned",
        tie_embeddings=False),
    # One of Python source; its tokenizer has 2,000 entries.
    "python-diffusion": architecture.Config(
        vocab_size=2001, dim=192, num_layers=7, num_heads=6, num_kv_heads=6,
        head_dim=32, hidden_dim=512, max_length=320),
    # One that drafts for python-target, the last entry being the mask again.
    "python-masked-draft": architecture.Config(
        vocab_size=2001, dim=128, num_layers=3, num_heads=4, num_kv_heads=4,
        head_dim=32, hidden_dim=320, max_length=320),
    # A dual encoder of Python source: two vectors of 64 numbers.
    "python-ranker": architecture.Config(
        vocab_size=2000, dim=128, num_layers=3, num_heads=4, num_kv_heads=4,
        head_dim=32, hidden_dim=256, max_length=320, tie_embeddings=False,
        outputs=128),
    # The drafter of Llama 2 in the paper (arXiv 2402.14160), "115M": of its
    # 116.9 M parameters 65.5 M are embedding and output layer.
    "llama2-draft": architecture.Config(
        vocab_size=32_000, dim=1024, num_layers=4, num_heads=8, num_kv_heads=8,
        head_dim=128, hidden_dim=2816, max_length=4096, tie_embeddings=False),
    # Trained in seconds, to see that everything works.
    "smoke": architecture.Config(
        vocab_size=2000, dim=32, num_layers=1, num_heads=2, num_kv_heads=1,
        head_dim=16, hidden_dim=64, max_length=320),
}
