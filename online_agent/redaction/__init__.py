"""Secrets are taken out of text before it is tokenised, stored or logged."""

from online_agent.redaction.redactor import Redactor

__all__ = ["Redactor"]
