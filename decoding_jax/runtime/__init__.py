"""What any decoding loop needs: caches, prefill, tokens, batching."""
