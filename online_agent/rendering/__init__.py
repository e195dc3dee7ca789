"""Chat template ↔ token ids, and the tool calls in what the model wrote."""

from online_agent.rendering.plans import Piece
from online_agent.rendering.renderer import ChatRenderer
from online_agent.rendering.tool_calls import parse_tool_calls
from online_agent.rendering.tool_schemas import tool_schema_hash

__all__ = ["ChatRenderer", "Piece", "parse_tool_calls", "tool_schema_hash"]
