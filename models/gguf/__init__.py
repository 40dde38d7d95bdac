"""GGUF files, the format of llama.cpp, read as Hugging Face folders."""
