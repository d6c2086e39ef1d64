"""Tools that a model may call: their description, the built-in ones, MCP servers, and one call of one tool."""
