#!/usr/bin/env bash
# Serve the tiny model on 127.0.0.1:PORT, in the foreground: the process is llama-server itself, so a signal reaches it.
# Prepare it with setup.sh first. More llama-server flags may follow the port. Ready when GET /health answers 200.
#
# Two slots with 16384 tokens each: two runs at once, the third waits inside the engine. One thread computes, so that the
# engine leaves the rest of a small machine to what is under test.
set -euo pipefail

if [[ $# -lt 1 || ! $1 =~ ^[0-9]+$ ]]; then
	echo "usage: run.sh PORT [llama-server flag...]" >&2
	exit 2
fi
port=$1
shift

cd "$(dirname "$0")/../../.cache/engine" 2>/dev/null || {
	echo "run.sh: no engine yet; run setup.sh" >&2
	exit 1
}
exec ./llama-server \
	--host 127.0.0.1 --port "$port" \
	--model model.gguf --alias iop-noise --offline \
	--parallel 2 --ctx-size 32768 \
	--threads 1 --threads-batch 1 \
	--metrics --slots --no-ui --no-warmup \
	"$@"
