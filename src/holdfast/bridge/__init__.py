"""The bridge: an OpenAI-compatible endpoint on the loopback, so that existing agents can be evaluated unchanged."""
