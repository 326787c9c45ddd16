"""The client matrix with packages that pin older ones: anthropic before its change of authorization, and instructor."""

import instructors
from clients import Messages
from matrix import run_matrix

claude = Messages("anthropic-old", "x-api-key", "2023-06-01")
run_matrix([claude, *instructors.drivers()], claude.extra())
