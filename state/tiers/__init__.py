"""The tiers below the device: host memory and disk."""
