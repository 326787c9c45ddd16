"""The client matrix with today's packages: openai, anthropic, ollama, LangChain, pydantic-ai; and Open Responses."""

import langchains
import ollamas
import openresponses
import pydanticai
from clients import Chat, Messages, Responses
from matrix import run_matrix

claude = Messages("anthropic", "authorization", "2026-10-21")
run_matrix(
    [Chat(), Responses(), claude, ollamas.Ollama(), *langchains.drivers(), *pydanticai.drivers()],
    [*claude.extra(), *ollamas.extra(), *openresponses.extra()],
)
