"""Text to tokens and back: parsing, rendering, tokenizing, reading the answer. No engine here."""
