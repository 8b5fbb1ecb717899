"""The data pipeline (§5): events, sequences, trigger trie, feature store, tunnel."""
