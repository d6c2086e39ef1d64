"""The bridge: an OpenAI-compatible endpoint on the loopback interface, to evaluate existing agents unchanged."""
