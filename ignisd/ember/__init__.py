"""The embedded model: a small Qwen3.5-style hybrid, its curriculum and its trainer."""

from pathlib import Path

WEIGHTS_DIR = Path(__file__).parent / "weights"
"""The directory of the shipped checkpoint, in Hugging Face form."""
