"""The model: geometry, weights, layers, and the forward programs built from them."""
