"""Benchmarks: commands of their own, measured side by side with a peer in the same run."""
