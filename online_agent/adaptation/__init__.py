"""How the agent's success moved: over episodes, by weight version, and around each change of its tools."""
